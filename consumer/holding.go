package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// holding is what a partition has ready under one claim, shared between the
// goroutine that owns the tenure and the committer that the partition is pinned
// to.
type holding[TX any] struct {
	owner   *ownership[TX]
	ctx     context.Context // ends when the partition is lost
	outcome chan outcome    // one for each call of committer.apply

	// Guarded by the committer's mutex.
	state   holdingState
	leaving bool // take no further transaction
	size    int  // messages in the transaction under way
	timer   *time.Timer

	// The rest belongs to whoever the state says: the committer while busy, the
	// owner while idle, and nobody in between.
	fence     epoch.Fence // as last claimed and advanced
	unapplied []Message   // read, and not applied yet
	probe     *probe      // the owner's
}

type holdingState int

const (
	idle    holdingState = iota // there is nothing to apply
	ready                       // there is, and it waits for a transaction
	busy                        // a transaction is under way
	waiting                     // the first message waits to be tried again
)

func newHolding[TX any](ctx context.Context, o *ownership[TX]) *holding[TX] {
	return &holding[TX]{owner: o, ctx: ctx, outcome: make(chan outcome, 1), fence: o.fence, probe: &o.probe}
}

// advanced moves the holding past n messages.
func (h *holding[TX]) advanced(a epoch.Advance, n int) error {
	next, err := h.fence.Advanced(a)
	if err != nil {
		return err // not reached while the sink keeps its promise
	}
	h.fence = next
	h.unapplied = h.unapplied[n:]
	if len(h.unapplied) == 0 {
		h.unapplied = nil // an empty slice would keep the source's buffer alive
	}
	h.probe.passed(n)
	return nil
}

// blame notes that a transaction with the first n unapplied messages failed
// because of one of them: the one at index at, or any of them if at is negative.
// shared says that messages of other partitions were in it. It returns how long
// to wait before the next try, and an error if the partition has to halt.
func (h *holding[TX]) blame(n, at int, shared bool, cause error) (time.Duration, error) {
	p, o, r := h.probe, h.owner, h.owner.run
	if p.given != nil {
		err := errors.Join(p.given, cause)
		p.halted()
		return 0, err
	}
	if n > 1 || shared {
		p.failed(n, at)
		return 0, nil
	}
	p.failed(1, 0) // from now on alone, whatever it was this time
	m := h.unapplied[0]
	p.attempts++
	p.first = m.Offset
	failure := &HandlerError{Partition: h.fence.Partition, Offset: m.Offset, Attempts: p.attempts, Err: cause}
	var permanent *permanentError
	switch final := errors.As(cause, &permanent) || p.attempts >= r.MaxAttempts; {
	case !final:
		return h.retry(cause, p.wait.next()), nil
	case r.OnFailure == nil:
		p.halted()
		return 0, failure
	default:
		o.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", cause, "offset", m.Offset, "attempt", p.attempts)
		p.given = failure
		return 0, nil
	}
}

// postpone has the first n unapplied messages tried again, fewer at a time, after
// a failure that is nobody's fault and came after took. found says that it was met
// with among them.
func (h *holding[TX]) postpone(n int, found, shared bool, cause error, took time.Duration) time.Duration {
	if h.probe.postponed(n, found, shared) {
		return 0
	}
	in := h.probe.pause.next()
	h.owner.stands(h.fence.Next, cause, took, in)
	return h.retry(cause, in)
}

// retry reports that the first message is tried again, and when.
func (h *holding[TX]) retry(cause error, in time.Duration) time.Duration {
	offset, attempt := h.unapplied[0].Offset, h.probe.attempts
	if attempt > 0 {
		h.owner.trouble(slog.LevelWarn, "message failed, trying again", cause, "offset", offset, "attempt", attempt, "retry_in", in)
	} else {
		h.owner.trouble(slog.LevelWarn, "transaction failed for no message's fault, trying again", cause, "offset", offset, "retry_in", in)
	}
	h.owner.run.Observer.Observe(Retried{Partition: h.fence.Partition, Offset: offset, Attempt: attempt, Err: cause, RetryIn: in})
	return in
}
