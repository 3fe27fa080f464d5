package consumer

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file applies the messages of a partition under one claim: it reads, submits what it has read to the
// committer, and decides with verdict.go what the answer means. partition.go decides when there is a
// claim. Everything here runs on the partition's goroutine.

// consume applies messages until the claim or the tenure ends. If background work or a look has
// ended the claim, its outcome replaces leave and halt, which are what applying has seen of that.
func (p *partition) consume() outcome {
	if out := p.given; out != nil {
		p.given = nil
		return *out
	}
	from := p.fence.Next
	out := p.applyAll()
	p.progress = p.progress || p.fence.Next > from
	if out.action == leave {
		p.stopBackground() // it may still end the claim
	}
	if b := p.claim.broken(); b != nil && (out.action == leave || out.action == halt) {
		return b.outcome
	}
	return out
}

// applyAll reads and applies batch by batch. The source may read ahead; the next batch is asked for
// when all messages of the last one are applied, so a partition holds one batch beside what its
// source buffers.
func (p *partition) applyAll() outcome {
	if p.claim.Err() != nil {
		return outcome{action: leave}
	}
	p.opens()
	defer p.closes()
	p.rests()
	for batch, err := range p.batches() {
		p.wakes()
		if err != nil {
			return outcome{action: halt, err: &sourceError{err}}
		}
		if out := p.apply(batch); out.action != advance {
			return out
		}
		if out := p.replayOne(); out.action != advance {
			return out
		}
		p.rests()
	}
	if p.lease.Err() != nil || !p.running(p.claim) { // the claim's context ends a moment after the tenure's
		return outcome{action: leave}
	}
	return outcome{action: halt, err: &sourceError{errors.New("consumer: the source ended the read before the partition was revoked")}}
}

// opens lets others look at the partition and request replays of it.
func (p *partition) opens() {
	p.replays.open()
	p.run.watches[p.committer.shard].add(p)
}

func (p *partition) closes() {
	p.committer.submitsNothing(p.id)
	p.wakes()
	p.run.watches[p.committer.shard].remove(p)
	p.replays.close()
}

// batches reads from the fence's position on. It is a function of its own so that its copy of the fence is
// not on the stack on which an idle partition waits for the next batch. With it the stack would need
// 16 KiB instead of 8.
//
//go:noinline
func (p *partition) batches() iter.Seq2[Batch, error] {
	return p.tenure.Read(p.claim, p.fence)
}

// apply applies a batch. The outcome is that all messages are applied (advance), that the partition was
// revoked or lost before that (leave), or what ended the claim. It comes after the transaction under way.
func (p *partition) apply(b Batch) outcome {
	if p.claim.Err() != nil {
		return outcome{action: leave}
	}
	if err := p.accept(b); err != nil {
		return outcome{action: halt, err: err}
	}
	for !p.done() { // a batch may move nothing
		out, in := p.applySome()
		if out.action == advance {
			out = p.beforeTheNext(in)
		}
		if out.action != advance {
			return out
		}
	}
	return outcome{action: advance}
}

// beforeTheNext waits before the next transaction, and replays what is requested meanwhile.
func (p *partition) beforeTheNext(in time.Duration) outcome {
	out := p.replayOne()
	if in > 0 {
		p.committer.submitsNothing(p.id)
		timer := time.NewTimer(in)
		defer timer.Stop()
		for waiting := true; waiting && out.action == advance; {
			select {
			case <-timer.C:
				waiting = false
			case <-p.replays.added:
				out = p.replayOne()
			case <-p.acted: // a message that fails compares no fence
				p.acted = p.run.acted.Next()
				ctx, cancel := p.untilRevoked(p.claim)
				if changed, _ := p.look(ctx); changed != nil {
					out = foundOut(changed)
				}
				cancel()
			case <-p.tenure.Draining():
				waiting = false
			case <-p.claim.Done():
				waiting = false
			}
		}
	}
	if out.action == advance && !p.running(p.claim) {
		out.action = leave
	}
	return out
}

// applySome submits what is left of the batch, and continues with the answer: advance, with how long to
// wait before the rest is tried, or what ends the claim.
func (p *partition) applySome() (out outcome, in time.Duration) {
	a := p.submit(p.work())
	switch {
	case a.none:
		return outcome{action: leave}, 0
	case a.abandoned:
		return p.abandoned(a), 0
	case a.err == nil:
		return p.committed(a), 0
	}
	v := a.verdicts()[a.of]
	// The order matters: bisect learns first, because the wait depends on what it learnt, and the
	// report needs the wait.
	t := a.tried[a.of]
	in = p.bisect.learn(v, t, a.handler != nil && !a.whole, len(a.tried) > 1)
	if v.finding == died {
		p.death = &death{t, v.err}
	}
	p.report.failed(p.fence, p.first(), p.bisect.attempts, v, in, a.took)
	switch v.action {
	case retry:
		return outcome{action: advance}, in
	case halt, haltInDoubt:
		p.bisect.halted()
	}
	return outcome{action: v.action, above: v.above, err: v.err}, 0
}

// work is what the partition would have in its next transaction.
func (p *partition) work() *work {
	b := &p.bisect
	return &work{
		run: p.run, fence: p.fence, batch: p.batch, most: p.size(), again: b.again && b.active(), failed: b.failed, refusals: b.refusals,
		trial:   trial{partition: p.id, attempts: b.attempts, failed: b.failed, doubts: b.doubts, narrowed: b.active()},
		timeout: p.timeout, lost: p.lease, answer: make(chan answer, 1),
	}
}

// submit gives work to the committer and waits for the answer. If the partition is revoked or lost,
// or the claim ends, it waits only for a transaction under way.
func (p *partition) submit(w *work) answer {
	p.committer.submit(w)
	select {
	case a := <-w.answer:
		return p.noted(a)
	case <-p.tenure.Draining():
	case <-p.claim.Done():
	}
	// A transaction under way may still commit. Only its answer says where this tenure has left the
	// partition, or that this is in doubt.
	p.committer.withdraw(w)
	return p.noted(<-w.answer)
}

// noted notes that a transaction has ended, and whether it was open when the lease was lost.
func (p *partition) noted(a answer) answer {
	if !a.none && (p.lease.Err() != nil || a.hang != nil) {
		p.caught.Store(true)
	}
	return a
}

// committed moves the position after a commit. The error of move means that the sink broke its promise; a
// new claim then finds out where the position is (R5).
func (p *partition) committed(a answer) outcome {
	if err := p.move(a.part.advance, len(a.part.messages)); err != nil {
		return outcome{action: claimAgain, err: err}
	}
	p.wakeBackground()
	// A copy, for tools that show lag: nothing reads it back (R8).
	p.tenure.Mirror(p.fence)
	p.report.advanced(p.fence, a.part, p.batch, a.took)
	if p.done() {
		return outcome{action: advance}
	}
	if err := p.recall(); err != nil {
		return outcome{action: halt, err: err}
	}
	return outcome{action: advance}
}

// first returns the offset of the first message at hand, or the position if there is none.
func (p *partition) first() epoch.Offset {
	if len(p.batch.Messages) > 0 {
		return p.batch.Messages[0].Offset
	}
	return p.fence.Next
}

// size returns how many messages the partition has for its next transaction.
func (p *partition) size() int {
	n := min(len(p.batch.Messages), p.run.MaxBatch)
	if p.bisect.active() {
		return p.bisect.size(n)
	}
	return n
}

// accept takes over a batch, or returns why it must not be applied.
func (p *partition) accept(b Batch) error {
	if err := b.follows(p.fence); err != nil {
		return err
	}
	p.batch = b
	if len(b.Messages) == 0 {
		p.bisect.meets(-1)
		return nil
	}
	first := b.Messages[0].Offset
	p.bisect.meets(first)
	if !p.begun && !p.fence.Applied && first > p.fence.Next {
		// A log at its limit has lost its beginning meanwhile. That is no loss to the group.
		p.logger.Info("begins at the first message there is, above its position: nothing was applied yet", "next", p.fence.Next, "first", first)
	}
	p.begun = true
	for i := range b.Messages {
		b.Messages[i].Under = p.under
	}
	return p.recall()
}

// recall retries messages that calls have hung on, each alone, as their next attempt. It returns an
// error if a message has used up its attempts.
func (p *partition) recall() error {
	if !p.hung {
		return nil
	}
	m, ok := p.run.suspects.Of(p.id)
	if !ok || m.Last < p.fence.Next {
		p.run.suspects.Forget(p.id)
		p.hung = false
		return nil
	}
	before, within := 0, 0
	for _, message := range p.batch.Messages {
		if message.Offset < m.First {
			before++
		} else if message.Offset <= m.Last {
			within++
		}
	}
	switch {
	case within == 0: // not in this batch
		return nil
	case m.First < m.Last: // it is unknown which one hangs
		p.bisect.alone(before + within)
		return nil
	case before > 0:
		if !p.bisect.active() {
			p.bisect.narrow(before+1, before)
		}
		return nil
	}
	p.bisect.alone(1)
	p.bisect.first, p.bisect.attempts = m.First, max(p.bisect.attempts, m.Attempts)
	failure := &HandlerError{Partition: p.id, Offset: m.First, Attempts: p.bisect.attempts, Err: errHung}
	policy := p.run.policy
	switch {
	case p.bisect.failed != nil:
	case m.Failed != nil: // it was OnFailure that hung
		return p.haltedBy(&onFailureError{m.Failed, errHung})
	case p.bisect.attempts < policy.maxAttempts:
	case !policy.onFailure:
		return p.haltedBy(failure)
	default:
		p.report.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", failure, "offset", m.First, "attempt", failure.Attempts)
		p.bisect.attempts, p.bisect.failed = 0, failure
	}
	return nil //nolint:nilerr // the failure is OnFailure's to take
}

// haltedBy keeps the record of the message, so that the partition stays halted until an operator lets
// it continue. The message would hang the next process, too.
func (p *partition) haltedBy(err error) error {
	p.bisect.halted()
	return fmt.Errorf("%w; the message is tried again once an operator has paused and resumed the partition", err)
}

// move repeats on our copy of the fence what the sink has just committed on its own.
func (p *partition) move(a epoch.Advance, n int) error {
	next, err := p.fence.Advanced(a)
	if err != nil {
		return err // not reached while the sink keeps its promise
	}
	p.fence = next
	p.batch = p.batch.after(n)
	p.bisect.passed(max(n, 1))
	p.report.moved()
	return nil
}

// done reports whether all of the batch is applied, and the position after it committed.
func (p *partition) done() bool { return p.fence.Next == p.batch.Next }

// forget drops what is known about the messages at hand: the position has changed, so they may be
// others.
func (p *partition) forget() {
	p.bisect.passed(p.bisect.suspects)
	p.death = nil
	p.report.moved()
}
