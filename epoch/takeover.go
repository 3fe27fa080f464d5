package epoch

import (
	"context"
	"errors"
	"fmt"
)

// This file decides the order of READ, CHECK, CONFIRM and SWAP, for all sources and sinks (R2). The
// caller decides when to claim, and whether to try again.

// Candidate is a process that has been granted the lease of a partition and wants to own it.
type Candidate struct {
	Origin Origin

	// Missing is called if there is no fence. It adds the fence and returns it, or an error. It is nil
	// if this process has seen the fence before: [TakeOver] then returns [ErrMissing] for a fence that
	// is gone, and adds none.
	Missing func(ctx context.Context) (Fence, error)

	// Confirm asks the source whether the lease is still granted. It returns a new claim
	// ([NewClaim]) of the lease that the source has confirmed.
	Confirm func(ctx context.Context, seen Fence) (Claim, error)
}

// TakeOver makes one attempt to make the candidate the owner of the partition: READ, CHECK, CONFIRM,
// SWAP. It returns the fence with the candidate's claim, and the fence that it replaced. The latter
// is returned with an error, too, if it was read.
//
// The confirmation must follow the read of the fence. A confirmation from before the read could be
// older than the claim that the read saw, and the swap would replace the rightful owner.
//
// The errors are those of the sink, of [Fence.Check] and [Fence.CheckRunning], and of the candidate.
// [ErrStale] means that another claim came in between: try again.
func TakeOver[TX any](ctx context.Context, sink Sink[TX], c Candidate) (got, seen Fence, err error) {
	seen, err = FenceOf(ctx, sink, c.Origin.Partition)
	if errors.Is(err, ErrMissing) && c.Missing != nil {
		seen, err = c.Missing(ctx)
	}
	if err != nil {
		return Fence{}, Fence{}, err
	}
	if err := seen.Check(c.Origin); err != nil {
		return Fence{}, seen, fmt.Errorf("claim %w", err)
	}
	if err := seen.CheckRunning(); err != nil {
		return Fence{}, seen, fmt.Errorf("claim %w", err)
	}
	claim, err := c.Confirm(ctx, seen)
	if err != nil {
		return Fence{}, seen, err
	}
	// Numbers of some stores jump, as ZooKeeper's do at each election.
	claim.Generation = min(claim.Generation, int64(seen.Epoch+MaxStep))
	got, err = sink.Claim(ctx, seen, claim)
	return got, seen, err
}
