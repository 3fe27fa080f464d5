package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// pending is what a partition has to apply, and how far it has got. Between
// [loop.attach] and [loop.detach] it belongs to the loop that the partition is pinned
// to, and otherwise to the goroutine that owns the tenure.
type pending[TX any] struct {
	owner   *ownership[TX]
	lost    context.Context // the tenure's: ends when the lease is lost
	outcome chan outcome    // one for each batch that was offered

	claim    context.Context // ends with the claim, or when the lease is lost; nil without a claim
	endClaim context.CancelCauseFunc

	fence  epoch.Fence // as last claimed and advanced; zero before the first claim
	batch  Batch       // read, and not applied yet
	bisect bisection   // of the messages from fence.Next on
	death  *death      // of the first message, until the next claim
	still  standstill
	begun  bool // the first message of all was compared with the position
	stands bool // was reported as Halted, and has not gone on since
	silent bool // the source is asked for the lag, which nothing else says
	hung   bool // a call hung on one of its messages: see recall

	// The loop's alone.
	state   pendingState
	revoked bool      // the transaction under way is the last one
	due     time.Time // when waiting ends
	quiet   bool      // nothing was pending at the last check of idle fences

	replaying bool          // the transaction of a replay is under way: no other begins
	replayed  bool          // a replay was the last transaction: messages that are ready come first
	left      chan struct{} // closed at its end, when the tenure waits for that
}

type pendingState int

const (
	idle    pendingState = iota // there is nothing to apply
	ready                       // there is, and it is queued
	busy                        // a transaction is under way
	waiting                     // the first message waits to be tried again
)

func newPending[TX any](tenure context.Context, o *ownership[TX]) *pending[TX] {
	p := &pending[TX]{owner: o, lost: tenure, outcome: make(chan outcome, 1), bisect: newBisection(o.run.RetryMin, o.run.RetryMax)}
	_, p.hung = o.run.hung.message(o.partition)
	return p
}

// size is how many messages the next transaction may take.
func (p *pending[TX]) size() int {
	n := min(len(p.batch.Messages), p.owner.run.MaxBatch)
	if p.bisect.active() {
		return p.bisect.size(n)
	}
	return n
}

// accept takes in the batch that was read next, which must go on from the fence.
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
		p.owner.logger.Info("begins at the first message there is, above its position: nothing was applied yet", "next", p.fence.Next, "first", first)
	}
	p.begun = true
	return p.recall()
}

// advanced moves past the n messages of a transaction that is committed.
func (p *pending[TX]) advanced(a epoch.Advance, n int) error {
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

// done reports whether the whole batch is applied.
func (p *pending[TX]) done() bool { return p.fence.Next == p.batch.Next }

// forget drops what was known of the messages at the position.
func (p *pending[TX]) forget() {
	p.bisect.passed(p.bisect.suspects)
	p.death = nil
	p.still.moved()
}

// brokenClaimError is the cause with which a claim's context ends when something is
// found out about the claim from elsewhere: by background work, or by a look at
// the fence.
type brokenClaimError struct{ outcome }

func (*brokenClaimError) Error() string { return "the claim has ended" }

// breakClaim ends the claim from elsewhere: the tenure gets out, whatever it waits
// for. The first reason counts.
func (p *pending[TX]) breakClaim(out outcome) { p.endClaim(&brokenClaimError{out}) }

// broken is what the claim was ended with from elsewhere, if it was.
func (p *pending[TX]) broken() *brokenClaimError {
	var b *brokenClaimError
	if p.claim != nil && errors.As(context.Cause(p.claim), &b) {
		return b
	}
	return nil
}
