package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file makes one attempt to claim a partition: what it asks the source and the sink, and how
// long each step may take. The order of the steps is decided in epoch/takeover.go, and what follows
// a failed attempt in next.go.

// claim makes one attempt to become the owner of a partition ([epoch.TakeOver]). The new epoch is
// above the given one, which another system has seen.
//
// The first claim of a partition also adopts the position that the group had committed to the
// source, if the options ask for it. That position is read before the confirmation, which shows
// that the lease has held since. Each step has its own time, so that what the source takes is not
// missing from the sink's.
func (r *runner[TX]) claim(ctx context.Context, t Tenure, timeout time.Duration, known bool, above epoch.Epoch) (got, seen epoch.Fence, err error) {
	c := epoch.Candidate{Origin: t.Origin()}
	if !known {
		c.Missing = func(ctx context.Context) (epoch.Fence, error) {
			ctx, done := context.WithTimeout(ctx, timeout)
			defer done()
			return r.seed(ctx, t)
		}
	}
	c.Confirm = func(ctx context.Context, seen epoch.Fence) (epoch.Claim, error) {
		adopt, err := r.adopt(ctx, t, timeout, seen)
		if err != nil {
			return epoch.Claim{}, fmt.Errorf("find what the group had committed for %s: %w", c.Origin.Partition, &sourceError{err})
		}
		ctx, done := context.WithTimeout(ctx, timeout)
		defer done()
		lease, err := t.Confirm(ctx, seen)
		if err != nil {
			return epoch.Claim{}, &unconfirmedError{c.Origin.Partition, err}
		}
		// Offsets of one log must never be compared with those of another.
		if lease.Origin != c.Origin {
			return epoch.Claim{}, &sourceError{fmt.Errorf("claim %s of log %q: the source confirmed %s of log %q",
				c.Origin.Partition, c.Origin.Log, lease.Partition, lease.Log)}
		}
		// R2: the claim carries the lease that was confirmed after the read, and no other lease is
		// at hand here.
		claim := epoch.NewClaim(lease)
		claim.Adopt, claim.Above = adopt, above
		return claim, nil
	}
	if got, seen, err = epoch.TakeOver(ctx, timed[TX]{r.sink, timeout}, c); err != nil {
		err = fmt.Errorf("consumer: %w", err)
	}
	return got, seen, err
}

// timed is a sink whose steps of a claim have a time limit.
type timed[TX any] struct {
	epoch.Sink[TX]
	limit time.Duration
}

func (s timed[TX]) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	ctx, done := context.WithTimeout(ctx, s.limit)
	defer done()
	return s.Sink.Fence(ctx, p)
}

func (s timed[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	ctx, done := context.WithTimeout(ctx, s.limit)
	defer done()
	return s.Sink.Claim(ctx, seen, c)
}

// adopt returns the position that the group had committed before it used this sink, or nil. It is
// read at the first claim only (R8): afterwards the sink's position is the truth, and the source's
// is a copy.
func (r *runner[TX]) adopt(ctx context.Context, t Tenure, timeout time.Duration, seen epoch.Fence) (*epoch.Position, error) {
	if seen.Epoch > 0 || r.Start != StartCommitted {
		return nil, nil
	}
	ctx, done := context.WithTimeout(ctx, timeout)
	defer done()
	at, ok, err := t.Committed(ctx)
	if err != nil || !ok {
		return nil, err
	}
	return &at, nil
}

// unconfirmedError is returned when the source did not confirm the lease. That is ordinary while a
// rebalance is under way, so nextClaim warns only when it repeats.
type unconfirmedError struct {
	partition epoch.Partition
	err       error
}

func (e *unconfirmedError) Error() string {
	return fmt.Sprintf("confirm the lease of %s: %v", e.partition, e.err)
}

func (e *unconfirmedError) Unwrap() error { return e.err }
