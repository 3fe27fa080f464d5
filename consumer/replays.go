package consumer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file replays dead letters: it decides when one that an operator has requested is replayed, between two
// transactions of its partition, and what the result means. watch.go finds the requests, and the transaction is
// one of the committer's, in a lane of its own.

// replay is a request that a look has found. The number of the look shows whether the request was
// read before or after the last replay of the same dead letter was settled.
type replay struct {
	operate.RequestedReplay
	look int64 // number of the look that found it
	from *requests
}

// replays are the requested replays of one partition. The partition runs one at a time, while no transaction of
// its messages is open. So a handler never runs twice at a time.
type replays struct {
	added chan struct{} // has a value after a request was queued
	tries map[int64]int // by ID: tries that failed for a transient reason. Whoever runs a replay has it

	mu    sync.Mutex
	taken bool // requests are queued; otherwise the next look finds them again
	queue []replay
	now   int64 // ID of the one that is being replayed

	settled map[int64]int64 // by ID: how many looks had begun when it was last settled
}

func (q *replays) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.now = true, 0
}

// close drops what is queued. The next owner of the partition finds it again.
func (q *replays) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.queue = false, nil
}

// add queues a replay, unless it is queued or was tried since the look that found it.
func (q *replays) add(r replay) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.taken || r.ID == q.now || q.settled[r.ID] >= r.look {
		return false
	}
	maps.DeleteFunc(q.settled, func(_, looks int64) bool { return looks < r.look }) // no earlier look comes any more
	if slices.ContainsFunc(q.queue, func(other replay) bool { return other.ID == r.ID }) {
		return false
	}
	q.queue = append(q.queue, r)
	waits.Notify(q.added)
	return true
}

// next takes the next replay, and reports whether others follow.
func (q *replays) next() (r replay, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return replay{}, false
	}
	r = q.queue[0]
	q.now = r.ID
	q.queue = slices.Delete(q.queue, 0, 1)
	if len(q.queue) > 0 {
		waits.Notify(q.added)
	}
	return r, true
}

// settle ends a replay. A request that looks have found until now is not tried again.
func (q *replays) settle(r *replay, looks int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.settled[r.ID] = looks; q.now == r.ID {
		q.now = 0
	}
}

// putBack makes a replay that did not begin the next one.
func (q *replays) putBack(r *replay) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now = 0; q.taken {
		q.queue = slices.Insert(q.queue, 0, *r)
	}
}

func (q *replays) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) > 0
}

// requested queues a replay. It begins at once beside a read that waits for messages.
func (p *partition) requested(r replay) {
	if p.replays.add(r) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.replayBeside()
	}
}

// replayBeside begins the next replay while the partition rests. The read goes on: to end it would cost the
// source far more than the replay. A message that arrives waits for the replay ([partition.wakes]). p.mu is held.
func (p *partition) replayBeside() {
	if !p.rest.on || p.rest.replay != nil {
		return
	}
	w, over := p.nextReplay(), make(chan struct{})
	if w == nil {
		return
	}
	p.rest.replay, p.rest.over = w, over
	p.committer.submit(w)
	go func() {
		a := <-w.answer
		p.committer.submitsNothing(p.id)
		out := p.settleReplay(w.replay, a)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rest.replay = nil
		if out.action != advance {
			p.hang = cmp.Or(p.hang, out.hang) // also if something else has ended the claim before
			p.claim.breakWith(out)
		}
		close(over)
		p.replayBeside()
	}()
}

// replayOne runs the next replay between two transactions, if there is one and it begins at once. The outcome is
// advance unless it ends the claim.
func (p *partition) replayOne() outcome {
	if !p.replays.waiting() || !p.committer.replaysAtOnce() {
		return outcome{action: advance}
	}
	w := p.nextReplay()
	if w == nil {
		return outcome{action: advance}
	}
	return p.settleReplay(w.replay, p.submit(w))
}

// settleReplay decides what became of a replay. The outcome is advance unless it ends the claim. A replay
// that is done or has failed for good makes requests look again at once, so that a list of replays does not
// take 2 s each.
func (p *partition) settleReplay(r *replay, a answer) outcome {
	q := &p.replays
	switch {
	case a.none:
		q.putBack(r)
		return outcome{action: advance}
	case a.abandoned:
		delete(q.tries, r.ID)
		p.report.replayed(r, replayFailed, true, a)
		p.record(r, a, p.run.records.ReplayFailed)
		return p.abandoned(a)
	}
	v := judgeReplay(a.tried[a.of], a.result, q.tries[r.ID])
	delay, again := r.again(v, a.result, p.run.MaxDeferrals)
	if again {
		v.what = replayDeferred
	}
	if q.tries[r.ID] = v.tries; v.tries == 0 {
		delete(q.tries, r.ID)
	}
	if v.broke.action == haltForGood {
		p.run.endedTx(p.id, v.broke.err) // the partition stays halted, even if the claim has ended already
	}
	p.report.replayed(r, v.what, v.failed && !again, a)
	if v.what == replayed {
		p.wakeBackground()
	}
	if again {
		p.record(r, a, func(ctx context.Context, failed operate.RequestedReplay, _ epoch.Fence, cause error) error {
			return p.run.records.DeferAgain(ctx, failed, cause, delay)
		})
	} else if v.failed {
		p.record(r, a, p.run.records.ReplayFailed)
	} else if q.settle(r, r.from.looks()); v.what.final() {
		p.wantsReplays(r)
	}
	if v.what == replayBroke {
		return v.broke
	}
	return outcome{action: advance}
}

// nextReplay takes the next replay: one message below the position, which it does not move. It returns nil
// if there is none, or nothing may begin.
func (p *partition) nextReplay() *work {
	if !p.running(p.claim) {
		return nil
	}
	r, ok := p.replays.next()
	if !ok {
		return nil
	}
	at, m := p.fence, r.Message
	m.Under, m.Replay = p.under, r.ID
	return &work{
		run: p.run, fence: at, batch: Batch{Messages: []Message{m}, Next: at.Next, Mark: at.Mark}, most: 1, replay: &r,
		trial: trial{partition: p.id}, timeout: p.timeout, lost: p.claim, answer: make(chan answer, 1),
	}
}

// record makes the sink record a failed replay by do, beside the messages. The replay is not tried again before that.
func (p *partition) record(r *replay, a answer, do func(context.Context, operate.RequestedReplay, epoch.Fence, error) error) {
	p.replays.settle(r, math.MaxInt64)
	failed, at, cause := r.RequestedReplay, a.part.fence, cmp.Or(a.handler, a.err)
	p.run.running.Go(func() {
		ctx, cancel := context.WithTimeout(p.committer.base, p.timeout)
		defer cancel()
		if err := do(ctx, failed, at, cause); err != nil {
			p.run.log(p.id).Warn("could not record that a replay has failed, the dead letter is replayed again", "dead_letter", r.ID, "err", err)
		}
		p.replays.settle(r, r.from.looks())
		p.wantsReplays(r)
	})
}

// wantsReplays asks for the next requests at once when none is queued.
func (p *partition) wantsReplays(last *replay) {
	if !p.replays.waiting() {
		last.from.again()
	}
}

type replayVerdict struct {
	what   outcomeOfReplay
	broke  outcome // with replayBroke: what ended the claim
	tries  int     // that count so far; 0 once the replay is settled
	failed bool    // the sink is to record that the replay has failed
}

// outcomeOfReplay says what became of a replay.
type outcomeOfReplay int

const (
	replayed       outcomeOfReplay = iota
	replayAgain                    // nothing is committed, and neither message nor handler is at fault
	replayTries                    // nothing is committed for a transient reason, and the try counts
	replayFailed                   // the message is still at fault
	replayDeferred                 // likewise, and it is deferred once more
	replayGone                     // it was withdrawn, or is done
	replayBroke                    // the claim has ended, too
)

func (o outcomeOfReplay) final() bool {
	return o == replayed || o == replayFailed || o == replayGone
}

// again returns the delay after which a message that its replay has failed for is replayed once more: as the handler
// says, or else as it has said before, but not against an operator who wants to know now.
func (r *replay) again(v replayVerdict, with result, most int) (delay time.Duration, ok bool) {
	cause := cmp.Or(with.handler, with.err)
	if v.what != replayFailed || r.Deferred >= most {
		return 0, false
	}
	if delay, ok = deferral(cause); !ok && r.IsDue && !isPermanent(cause) {
		return r.Delay, true
	}
	return delay, ok
}

// maxReplayTries limits the tries of one request. A dead letter that deadlocks or ends its
// connection each time would otherwise disturb the partition for ever.
const maxReplayTries = 5

// judgeReplay decides on a replay. tries counts the failed tries before.
func judgeReplay(t trial, r result, tries int) replayVerdict {
	what, broke := resultOfReplay(t, r)
	kills := what == replayBroke && (inDoubt(r.err) || errors.Is(r.err, epoch.ErrStale)) && r.froze == 0 // its connection, or the claim
	if what == replayTries || kills {
		tries++
	}
	tired := tries >= maxReplayTries
	if tired && what == replayTries {
		what = replayFailed
	}
	v := replayVerdict{what: what, broke: broke, tries: tries, failed: what == replayFailed || tired && kills}
	if tired || what.final() {
		v.tries = 0
	}
	return v
}

// resultOfReplay keeps the order of [policy.judge]: first a refusal, then doubt, then blame.
func resultOfReplay(t trial, r result) (outcomeOfReplay, outcome) {
	v, whose := refusal(r.err)
	switch err := r.err; {
	case err == nil:
		return replayed, outcome{}
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return replayBroke, outcome{action: haltForGood, err: err}
	case whose == t.partition:
		return replayBroke, outcome{action: v.action, above: v.above, err: err}
	case errors.Is(err, epoch.ErrInDoubt):
		return replayBroke, outcome{action: claimAgain, err: err, beside: true}
	case t.lost || !r.called || r.froze > 0 || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):
		return replayAgain, outcome{}
	case errors.Is(err, epoch.ErrTransient) && !isPermanent(r.handler):
		return replayTries, outcome{}
	case errors.Is(err, operate.ErrRowChanged) && r.handler == nil:
		return replayGone, outcome{}
	default:
		return replayFailed, outcome{}
	}
}
