package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/epochfence/epochfence/epoch"
)

// holding is one partition under one claim, shared between the goroutine that
// owns the tenure and the committer the partition is pinned to.
type holding[TX any] struct {
	*ownership[TX]
	ctx     context.Context // ends when the partition is lost
	outcome chan error      // one for each call of apply; nil when all was applied

	// Guarded by the committer's mutex.
	state   holdingState
	leaving bool // take no further transaction
	timer   *time.Timer

	// The rest belongs to whoever the state says: the committer while busy, the
	// owner while idle, and nobody in between.
	fence epoch.Fence // as last claimed and advanced
	hand  []Message   // read and not yet applied
	probe probe
	given error // why the first message of hand goes to OnFailure, if it does
}

type holdingState int

const (
	idle    holdingState = iota // the hand is empty
	ready                       // the hand waits for a transaction
	busy                        // a transaction is under way
	waiting                     // the first message waits to be tried again
)

func newHolding[TX any](ctx context.Context, o *ownership[TX]) *holding[TX] {
	return &holding[TX]{
		ownership: o, ctx: ctx, outcome: make(chan error, 1), fence: o.fence,
		probe: probe{backoff: newBackoff(o.RetryMin, o.RetryMax)},
	}
}

// alone reports whether the next transaction must not be shared: it has failed
// before, and would take the others down with it.
func (h *holding[TX]) alone() bool { return h.probe.suspects > 0 || h.given != nil }

// next is how many messages of the hand the next transaction takes.
func (h *holding[TX]) next(limit int) int {
	switch {
	case h.given != nil:
		return 1
	case h.probe.suspects > 0:
		return min(h.probe.try, len(h.hand), limit)
	default:
		return min(len(h.hand), limit)
	}
}

// advanced moves the holding past n messages.
func (h *holding[TX]) advanced(a epoch.Advance, n int) error {
	next, err := h.fence.Advanced(a)
	if err != nil {
		return err // not reached while the sink keeps its promise
	}
	h.fence = next
	h.hand = h.hand[n:]
	h.given = nil
	h.probe.passed(n)
	return nil
}

// blame notes that a transaction with the first n messages of the hand failed
// because of one of them: the one at index at, or any of them if at is
// negative. alone says that nobody else's messages were in it. It returns how
// long to wait before the next try, and an error when the holding has to halt.
func (h *holding[TX]) blame(n, at int, alone bool, cause error) (time.Duration, error) {
	if h.given != nil {
		return 0, &haltError{err: errors.Join(h.given, cause)}
	}
	if n > 1 || !alone {
		h.probe.failed(n, at)
		return 0, nil
	}
	h.probe.attempts++
	m := h.hand[0]
	failure := &HandlerError{Partition: h.partition, Offset: m.Offset, Attempts: h.probe.attempts, Err: cause}
	var permanent *permanentError
	if !errors.As(cause, &permanent) && h.probe.attempts < h.MaxAttempts {
		in := h.probe.backoff.NextBackOff()
		h.logger.Warn("handler failed, trying again", "offset", m.Offset, "attempt", h.probe.attempts, "err", cause, "retry_in", in)
		h.Observer.Observe(Retried{Partition: h.partition, Offset: m.Offset, Attempt: h.probe.attempts, Err: cause, RetryIn: in})
		return in, nil
	}
	if h.OnFailure == nil {
		return 0, &haltError{err: failure}
	}
	h.logger.Error("handler failed for good, passing the message to OnFailure", "offset", m.Offset, "attempt", h.probe.attempts, "err", cause)
	h.given = failure
	return 0, nil
}

// probe narrows a failed batch down to the message at fault.
type probe struct {
	suspects int // the fault is among so many messages at the front of the hand
	try      int // so many of them go into the next transaction
	attempts int // of the first message, alone
	backoff  backoff.BackOff
}

// failed: n messages failed together, the one at index at, or unknown.
func (p *probe) failed(n, at int) {
	switch {
	case at >= 0:
		p.suspects, p.try = at+1, max(at, 1)
	default:
		p.suspects, p.try = n, max(n/2, 1)
	}
}

// passed: n messages from the front were applied.
func (p *probe) passed(n int) {
	p.suspects = max(p.suspects-n, 0)
	p.try = max(p.suspects/2, 1)
	p.attempts = 0
	p.backoff.Reset()
}
