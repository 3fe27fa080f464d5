package consumer

import (
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides which ticks of a job are recorded in the audit log: with one outcome, one a
// minute (L8). Package consumer/schedule decides when a tick is due.

// tickEvery is the least time between two records of ticks of one job with the same outcome (L8).
const tickEvery = time.Minute

// ticks counts what the audit log gets about the ticks of a job.
type ticks struct {
	began    time.Time    // the first attempt of the present tick by this tenure; zero between two ticks
	at       epoch.Offset // of the step that has failed
	attempts int          // of it
	err      error        // of the last one

	recorded time.Time // the last record
	outcome  string    // in it
	since    int       // ticks since then
}

// failed counts a failed attempt of a tick's step. took is its duration.
func (t *ticks) failed(at epoch.Offset, err error, took time.Duration) {
	if at != t.at {
		t.at, t.attempts = at, 0
	}
	t.attempts, t.err = t.attempts+1, err
	if t.began.IsZero() {
		t.began = time.Now().Add(-took)
	}
}

// recordTick records the tick of a job that did has ended.
func (p *pending[TX]) recordTick(did part[TX], took time.Duration) {
	t, a := &p.tick, did.advance
	if p.fence.Log != operate.JobLog {
		return
	}
	now := time.Now()
	if len(did.messages) > 0 && t.began.IsZero() {
		t.began = now.Add(-took)
	}
	from := a.From
	if len(did.messages) > 0 {
		from = did.messages[0].Offset
	}
	at, step := operate.JobTime(from)
	if _, steps := operate.JobTime(a.To); steps > 0 { // others follow
		return
	}
	if len(did.messages) == 0 && step == 0 { // ticks were left out
		return
	}
	outcome := "done"
	if did.failed != nil {
		outcome = "failed, OnFailure has taken it"
	}
	text := outcome
	if !t.began.IsZero() {
		text += fmt.Sprintf(", begun %s, took %v", t.began.UTC().Format(time.RFC3339), now.Sub(t.began).Round(time.Millisecond))
	}
	if step > 0 {
		text += fmt.Sprintf(", %d steps", step)
	}
	switch {
	case did.failed != nil:
		text += fmt.Sprintf(": %v", did.failed)
	case t.attempts > 0 && t.at == from:
		text += fmt.Sprintf(", attempt %d; the one before failed: %v", t.attempts+1, t.err)
	}
	t.began, t.attempts, t.err = time.Time{}, 0, nil
	if outcome == t.outcome && now.Sub(t.recorded) < tickEvery {
		t.since++
		return
	}
	if t.since > 0 {
		text += fmt.Sprintf("; %d ticks were %s since %s", t.since, t.outcome, t.recorded.UTC().Format(time.RFC3339))
	}
	t.recorded, t.outcome, t.since = now, outcome, 0
	f := p.fence
	p.run.recorder.add(operate.Decision{
		Kind: operate.DecidedTick, Partition: p.partition, Epoch: did.epoch, Claim: f.Claim, Owner: f.Owner,
		From: operate.JobOffset(at), To: a.To, Reason: text,
	})
}
