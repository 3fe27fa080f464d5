package consumer

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file holds what a partition has read and not applied yet, and moves its position after a
// commit. loop.go decides when the messages are applied, and bisection.go how many at a time.

// pending holds the messages of a partition that are still to be applied. The loop owns it while the
// partition's claim is consumed, otherwise the tenure's goroutine does.
type pending[TX any] struct {
	*tenancy[TX]

	claim  *claim
	seen   epoch.Fence  // as last read, which may be another process's
	fence  epoch.Fence  // as last claimed and advanced; zero before the first claim
	under  *epoch.Fence // as claimed, for handlers
	batch  Batch        // read, and not applied yet
	bisect bisection    // of the messages from fence.Next on
	death  *death       // of the first message, until the next claim
	still  standstill
	begun  bool // the first message of all was compared with the position
	hung   bool // a call hung on one of its messages: see recall

	halted   bool   // observers got a Halted, and it has not moved since
	recorded Reason // of the halt in the audit log that counts since the last claim; ReasonNone without one
	silent   bool   // the lag is requested from the source
	tick     ticks  // of a job of package schedule

	// The loop's alone.
	state   pendingState
	revoked bool // the transaction under way is the last one
	due     time.Time
	quiet   bool // nothing was pending at the last check of idle fences

	replaying  bool                // the transaction of a replay is under way: no other begins
	replayed   bool                // a replay was the last transaction: messages that are ready come first
	back       chan<- *pending[TX] // to be handed back here at its end
	hungReplay *hang               // a replay was abandoned while this was to be handed back
}

// pendingState says where the messages of a partition are: nowhere, queued in a lane, in a
// transaction, or behind a wait.
type pendingState int

const (
	idle  pendingState = iota // there is nothing to apply
	ready                     // there is, and it is queued
	busy
	waiting // the first message waits to be tried again
)

func newPending[TX any](t *tenancy[TX]) *pending[TX] {
	p := &pending[TX]{tenancy: t, bisect: newBisection(t.run.RetryMin, t.run.RetryMax)}
	_, p.hung = t.run.hung.message(t.partition)
	return p
}

// size returns how many messages the partition has for its next transaction.
func (p *pending[TX]) size() int {
	n := min(len(p.batch.Messages), p.run.MaxBatch)
	if p.bisect.active() {
		return p.bisect.size(n)
	}
	return n
}

// accept takes over a batch, or returns why it must not be applied.
func (p *pending[TX]) accept(b Batch) error {
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
	return p.recall()
}

// move repeats on our copy of the fence what the sink has just committed on its own.
func (p *pending[TX]) move(a epoch.Advance, n int) error {
	next, err := p.fence.Advanced(a)
	if err != nil {
		return err // not reached while the sink keeps its promise
	}
	p.fence = next
	p.batch = p.batch.after(n)
	p.bisect.passed(max(n, 1))
	p.still.moved()
	return nil
}

// done reports whether all of the batch is applied, and the position after it committed.
func (p *pending[TX]) done() bool { return p.fence.Next == p.batch.Next }

// forget drops what is known about the messages at hand: the position has changed, so they may be
// others.
func (p *pending[TX]) forget() {
	p.bisect.passed(p.bisect.suspects)
	p.death = nil
	p.still.moved()
}
