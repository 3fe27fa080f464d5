package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// claim makes one attempt to become the owner of a partition: READ, CHECK, CONFIRM, SWAP. It
// returns our fence and the fence that it replaced. [epoch.ErrStale] means that another claim came
// in between: try again. The new epoch is above the given one, which another system has seen.
//
// The first claim of a partition also adopts the position that the group had committed to the
// source, if the options ask for it. That position is read before the confirmation, which shows
// that the lease has held since.
//
// The confirmation must follow the read of the fence. A confirmation from before the read could be
// older than the claim that the read saw, and the swap would replace the rightful owner.
func (r *runner[TX]) claim(ctx context.Context, t Tenure, known bool, above epoch.Epoch) (got, seen epoch.Fence, err error) {
	origin := t.Origin()
	seen, err = r.sink.Fence(ctx, origin.Partition)
	if errors.Is(err, epoch.ErrMissing) && !known {
		seen, err = r.seed(ctx, t)
	}
	if err != nil {
		return got, seen, fmt.Errorf("consumer: %w", err)
	}
	if err := seen.Check(origin); err != nil {
		return got, seen, fmt.Errorf("consumer: claim %w", err)
	}
	if err := seen.CheckRunning(); err != nil {
		return got, seen, fmt.Errorf("consumer: claim %w", err)
	}
	adopt, err := r.adopt(ctx, t, seen)
	if err != nil {
		return got, seen, fmt.Errorf("consumer: find what the group had committed for %s: %w", origin.Partition, &sourceError{err})
	}
	lease, err := t.Confirm(ctx, seen)
	if err != nil {
		return got, seen, &unconfirmedError{origin.Partition, err}
	}
	if lease.Origin != origin {
		return got, seen, &sourceError{fmt.Errorf("consumer: claim %s of log %q: the source confirmed %s of log %q",
			origin.Partition, origin.Log, lease.Partition, lease.Log)}
	}
	bid := epoch.NewClaim(lease)
	bid.Adopt = adopt
	bid.Above = above
	got, err = r.sink.Claim(ctx, seen, bid)
	if err != nil {
		return got, seen, fmt.Errorf("consumer: %w", err)
	}
	return got, seen, nil
}

func (r *runner[TX]) adopt(ctx context.Context, t Tenure, seen epoch.Fence) (*epoch.Position, error) {
	if seen.Epoch > 0 || r.Start != StartCommitted {
		return nil, nil
	}
	at, ok, err := t.Committed(ctx)
	if err != nil || !ok {
		return nil, err
	}
	return &at, nil
}

type unconfirmedError struct {
	partition epoch.Partition
	err       error
}

func (e *unconfirmedError) Error() string {
	return fmt.Sprintf("consumer: confirm the lease of %s: %v", e.partition, e.err)
}

func (e *unconfirmedError) Unwrap() error { return e.err }
