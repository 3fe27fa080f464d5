package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/hung"
	"github.com/epochfence/epochfence/consumer/internal/stacks"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides what becomes of a call that runs on long after its context has ended (L7): which
// partition is given up, which message is blamed, and when too many calls hang. An owner that gives its
// partition up records the message in the sink's audit log, for the next owner. internal/hung combines what both
// know of it, and recall in apply.go tries it again, alone.

// hang is a call that was abandoned and has not returned. Go cannot end a goroutine, so the call
// may keep what it holds for as long as it likes: memory, locks of the process, connections that
// are not the sink's.
type hang struct {
	Overdue
	with      []epoch.Partition // whose messages the call has as well
	goroutine string
	returned  chan struct{}
	line      *time.Timer   // of the next line in the log
	lines     time.Duration // until the one after that
}

// hangs holds the hanging calls of one Run.
type hangs struct {
	most int

	mu      sync.Mutex
	open    map[*hang]struct{}
	tooMany []Overdue // the calls at the time when they became too many
	over    bool      // Run has returned
}

func newHangs(most int) *hangs {
	return &hangs{most: most, open: map[*hang]struct{}{}}
}

// of returns the call that hangs for a partition, or nil. While there is one, this process does not
// claim the partition: the message would hang another goroutine.
func (hs *hangs) of(p epoch.Partition) *hang {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for h := range hs.open {
		if h.Partition == p || slices.Contains(h.with, p) {
			return h
		}
	}
	return nil
}

// add records a hanging call, and reports once that there are too many.
func (hs *hangs) add(h *hang) (tooMany bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.open[h] = struct{}{}
	if len(hs.open) <= hs.most || hs.tooMany != nil {
		return false
	}
	hs.tooMany = hs.calls()
	return true
}

func (hs *hangs) calls() []Overdue {
	var calls []Overdue
	for h := range hs.open {
		calls = append(calls, h.Overdue)
	}
	slices.SortFunc(calls, func(a, b Overdue) int {
		return cmp.Or(a.Partition.Compare(b.Partition), cmp.Compare(a.Function, b.Function))
	})
	return calls
}

// remove reports whether Run still runs. After Run has returned, it must not call the user's
// Observe or Logger any more.
func (hs *hangs) remove(h *hang) (running bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.open, h)
	if h.line != nil {
		h.line.Stop()
	}
	return !hs.over
}

// close ends the list, and returns the error of Run if calls hang, or if there were too many at one
// time. The latter counts even if they have all returned by now: Run was stopped because of them.
func (hs *hangs) close() error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.over = true
	for h := range hs.open {
		if h.line != nil {
			h.line.Stop()
		}
	}
	calls := hs.calls()
	if len(calls) == 0 {
		calls = hs.tooMany
	}
	if len(calls) == 0 {
		return nil
	}
	return &HungError{calls}
}

const (
	// overrunGrace is how long a call may still take when its partition was not drained in time.
	overrunGrace = time.Second

	// firstHungLine and lastHungLine bound the wait between log lines about a hang. It doubles.
	firstHungLine = time.Minute
	lastHungLine  = 10 * time.Minute
)

var errTooManyHang = errors.New("too many calls hang")

// hangs reports a call that is being abandoned. The call hangs until returned is called.
func (r *runner) hangs(o Overdue, goroutine string, with ...epoch.Partition) *hang {
	h := &hang{Overdue: o, with: with, goroutine: goroutine, returned: make(chan struct{}), lines: firstHungLine}
	tooMany := r.hung.add(h)
	r.Observe(o)
	r.life.Changed()
	r.logHang(h)
	if tooMany {
		r.Logger.Error("more calls hang than Options.MaxHung allows; stopping", "max_hung", r.MaxHung)
		r.stop(errTooManyHang)
	}
	return h
}

// logHang logs a hang again and again for as long as it lasts (L7), with the present stack: the
// call may be blocked elsewhere by now.
func (r *runner) logHang(h *hang) {
	r.hung.mu.Lock()
	defer r.hung.mu.Unlock()
	if _, open := r.hung.open[h]; !open || r.hung.over {
		return
	}
	about := []any{"function", h.Function, "epoch", h.Epoch, "for", time.Since(h.Since).Round(time.Second), "in", stacks.Frame(h.Stack), "stack", h.Stack}
	if h.Offset >= 0 {
		about = append([]any{"offset", h.Offset}, about...)
	}
	text := "a call hangs and was abandoned: it does not return although its context has ended; the partition is given up until it does"
	if h.Function == FunctionSink {
		text = "a call of the sink hangs and was abandoned: it does not return although its context has ended; the outcome is in doubt"
	}
	r.log(h.Partition).Error(text, about...)
	h.line = time.AfterFunc(h.lines, func() {
		stack := stacks.Of(h.goroutine)
		r.hung.mu.Lock()
		h.Stack = stack // it may be blocked elsewhere by now
		r.hung.mu.Unlock()
		r.logHang(h)
	})
	h.lines = min(2*h.lines, lastHungLine)
}

// returned records that an abandoned call has returned after all. The source may grant the
// partition to this process again.
func (r *runner) returned(h *hang) {
	running := r.hung.remove(h)
	if running {
		r.life.Changed()
		took := time.Since(h.Since)
		r.log(h.Partition).Info("a call that hung has returned", "function", h.Function, "epoch", h.Epoch, "took", took.Round(time.Millisecond))
		r.Observe(Returned{Partition: h.Partition, Epoch: h.Epoch, Function: h.Function, Took: took})
	}
	close(h.returned)
}

// abandon answers the partitions of a transaction that runs on long after its context has ended (L7).
// The partitions whose calls hang are given up. The others continue, because none of their handlers
// runs. If no call is under way, the sink hangs, and only a new claim shows what is committed.
func (c *committer) abandon(t *transaction) {
	if !c.close(t) {
		return
	}
	// Whatever the call does from here on, its transaction cannot commit: the sink refuses it once
	// the context in its options has ended, which t.abandon does below.
	calls, _ := t.under.abandon()
	answers := make([]answer, len(t.parts)) // with what hangs
	several := t.order == together || len(calls) > 1
	first := t.overdue(0)
	hangs := func(o Overdue, goroutine string, with ...epoch.Partition) *hang {
		o.Stack = stacks.Of(goroutine)
		t.hangs = append(t.hangs, c.run.hangs(o, goroutine, with...))
		if len(t.hangs) == 1 {
			first = o
		}
		return t.hangs[len(t.hangs)-1]
	}
	switch {
	case len(calls) == 0:
		first.Function = FunctionSink
		hangs(first, t.goroutine)
	case t.order == together:
		at := t.places[0]
		var all []epoch.Partition
		for i := range t.parts {
			all = append(all, t.parts[i].advance.Partition)
		}
		h := hangs(t.overdueAt(at), t.goroutine, all...)
		for i := range answers {
			answers[i].hang, answers[i].place, answers[i].last = h, at, at.at
		}
	default:
		for _, call := range slices.Sorted(maps.Keys(calls)) {
			at := t.places[call]
			a := &answers[at.batch]
			if a.hang == nil { // one stands for all calls of a partition
				a.hang, a.place = hangs(t.overdueAt(at), calls[call]), at
			}
			a.last = at.at
		}
	}
	close(t.abandoned) // its goroutine may end at any time, and reads t.hangs
	t.abandon()
	t.release()
	took := time.Since(t.began)
	batch := max(slices.IndexFunc(answers, func(a answer) bool { return a.hang != nil }), 0)
	r := result{err: &hungError{first}, called: true, batch: batch, timedOut: true, took: took, handling: took, handler: errHung}
	if len(calls) == 0 {
		r.err = fmt.Errorf("%w: %w", epoch.ErrInDoubt, r.err)
	}
	tried := t.trials()
	c.run.Observe(transacted(tried, r))
	c.answer(t, func(i int) answer {
		a := answers[i]
		a.part, a.tried, a.of, a.result, a.abandoned, a.several = &t.parts[i], tried, i, r, true, several
		return a
	})
}

// abandonedEnds is called when an abandoned transaction has returned after all.
func (r *runner) abandonedEnds(t *transaction) {
	<-t.abandoned
	if errors.Is(t.result.err, epoch.ErrTxEndedByHandler) { // before it was abandoned
		for i := range t.parts {
			r.endedTx(t.parts[i].advance.Partition, t.result.err)
		}
	}
	for _, h := range t.hangs {
		r.returned(h)
	}
}

// abandoned returns what follows for a partition of an abandoned transaction: if the call of another
// partition hangs, it is tried again at once.
func (p *partition) abandoned(a answer) outcome {
	switch {
	case errors.Is(a.err, epoch.ErrInDoubt): // whether the sink has committed is unknown, for all partitions alike
		return outcome{action: claimAgain, err: a.err, beside: a.part.replay != nil}
	case a.hang == nil:
		return outcome{action: advance}
	}
	// The message at fault is remembered before the partition is given up: its next owner tries it alone.
	if a.part.replay == nil {
		p.blame(a)
	}
	return outcome{action: abandon, hang: a.hang}
}

// blame remembers which message a call hangs on, so that the next transaction tries it alone. If
// the call has all messages of a part, or several hang, the whole range is remembered: any of them may be the one.
// The attempts that the first message had before the hang still count.
func (p *partition) blame(a answer) {
	ms, t, at := a.part.messages, a.tried[a.of], a.place.at
	if len(ms) == 0 {
		return
	}
	m := hung.Message{First: ms[0].Offset, Last: ms[len(ms)-1].Offset, Failed: a.part.failed}
	if at >= 0 {
		m.First, m.Last = ms[at].Offset, ms[a.last].Offset
	}
	if m.First == t.first && m.Failed == nil {
		m.Attempts = t.attempts
	}
	if a.several && m.First == m.Last {
		m.Last++ // no attempt of this message: perhaps it is another one that hangs
	}
	p.run.suspects.Blame(p.id, m)
}

// overdue returns the report of what hangs, for this partition: the call may have messages of several.
func (p *partition) overdue() Overdue {
	p.run.hung.mu.Lock()
	o := p.hang.Overdue // its stack may be replaced at any time
	p.run.hung.mu.Unlock()
	if p.id != o.Partition {
		m, _ := p.run.suspects.Of(p.id)
		o.Partition, o.Epoch, o.From, o.To, o.Offset = p.id, p.fence.Epoch, -1, -1, m.First
	}
	return o
}

// recordHang writes what hangs. The partition is this process's until recordHang has returned.
func (p *partition) recordHang() {
	call, f := p.overdue(), p.fence
	d := operate.Decision{
		Kind: operate.DecidedHang, Partition: p.id, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: -1, To: -1, Reason: "given up: " + call.String(),
	}
	m, ok := p.run.suspects.Of(p.id)
	if !ok || call.Function != FunctionHandler && call.Function != FunctionOnFailure {
		p.run.recorder.AddNow(d)
		return
	}
	d.From, d.To = m.First, m.Last+1
	if m.Failed != nil {
		d.Kind = operate.DecidedOnFailureHang
		d.Reason += fmt.Sprintf("; it was called because %v", m.Failed)
	}
	if p.run.recorder.AddNow(d) {
		p.run.suspects.Recorded(p.id)
	}
}

// recallHangs reads which messages have hung in other processes. If the audit log cannot be read,
// the partition continues with what this process knows: a hang would then be found once more.
func (p *partition) recallHangs(ctx context.Context) {
	if p.run.records == nil {
		return
	}
	log, err := p.run.records.Hangs(ctx, p.id)
	switch {
	case err == nil:
		p.hung = p.run.suspects.Learn(p.id, log, p.fence.Next)
	case p.running(p.lease):
		p.report.trouble(slog.LevelWarn, "cannot read which messages have hung; counting what this process knows", err)
	}
}

// overdue describes the transaction as it is reported if it does not end.
func (t *transaction) overdue(part int) Overdue {
	a := t.parts[part].advance
	return Overdue{Partition: a.Partition, Epoch: t.parts[part].epoch, From: a.From, To: a.To, Timeout: t.timeout, Offset: -1, Since: t.began}
}

// overdueAt describes the call at a place that hangs. For a call with all messages of a part, the first
// message stands for it.
func (t *transaction) overdueAt(at place) Overdue {
	o, p := t.overdue(at.batch), &t.parts[at.batch]
	if len(p.messages) > 0 {
		o.Offset = p.messages[max(at.at, 0)].Offset
	}
	switch {
	case p.replay != nil:
		o.Function = FunctionReplay
	case p.failed != nil:
		o.Function = FunctionOnFailure
	}
	return o
}
