package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func carryOutAll(ctx context.Context, op operate.Operator, deeds []deed, views []deedView, by doing) error {
	var failed []error
	for i, d := range deeds {
		if d.nothing != "" {
			continue
		}
		f, err := carryOut(ctx, op, d, by)
		if errors.Is(err, operate.ErrNothingToDo) {
			views[i].Effect = err.Error()
			continue
		}
		if err != nil {
			views[i].Error = err.Error()
			failed = append(failed, fmt.Errorf("%s %s: %w", d.kind, d.seen.Fence.Partition, err))
			continue
		}
		views[i].Done, views[i].After = true, &partitionAct{int64(f.Epoch), f.Claim.String(), int64(f.Next)}
	}
	return errors.Join(failed...)
}

// evictions limits how often an action that sets a position evicts a working owner.
const evictions = 10

// carryOut carries out d on the claim that d has seen. If the owner is working, the position moves
// between the read and the action, and the action is refused without effect. carryOut then evicts
// the owner. The position stands still until the owner has claimed again; the owner first has to
// confirm with its source, so the action usually comes before it.
func carryOut(ctx context.Context, op operate.Operator, d deed, by doing) (epoch.Fence, error) {
	f, err := d.carryOut(ctx, op, d.seen.Fence, by)
	if !errors.Is(err, epoch.ErrMoved) || d.kind == operate.ActSkip {
		return f, err
	}
	seen := d.seen.Fence // an eviction compares the epoch and the claim, not the position
	for range evictions {
		still, err := act(ctx, op, operate.NewAct(operate.ActEvict, seen, by.by, by.reason))
		if errors.Is(err, epoch.ErrStale) && seen.Claim != d.seen.Claim {
			if seen, err = reread(ctx, op, d); err != nil {
				return epoch.Fence{}, err
			}
			continue
		}
		if err != nil {
			return epoch.Fence{}, err
		}
		if d.numbered() && direction(still.Next, d.to.Offset) != direction(d.seen.Next, d.to.Offset) {
			return epoch.Fence{}, fmt.Errorf("the position was %d and is %d by now, past where it should go: %w", d.seen.Next, still.Next, errChanged)
		}
		f, err := d.carryOut(ctx, op, still, by)
		if !errors.Is(err, epoch.ErrStale) {
			return f, err
		}
		if seen, err = reread(ctx, op, d); err != nil {
			return epoch.Fence{}, err
		}
	}
	return epoch.Fence{}, fmt.Errorf("the owner claims again too fast; pause the partition, do it, and resume it: %w", errChanged)
}

func (d deed) carryOut(ctx context.Context, op operate.Operator, now epoch.Fence, by doing) (epoch.Fence, error) {
	a, err := d.act(now, by)
	if err != nil {
		return epoch.Fence{}, err
	}
	return act(ctx, op, a)
}

func reread(ctx context.Context, op operate.Operator, d deed) (epoch.Fence, error) {
	p, err := op.Partition(ctx, d.seen.Fence.Partition)
	return p.Fence, err
}

// act takes action a, and finds out its outcome if the answer was lost.
func act(ctx context.Context, op operate.Operator, a operate.Act) (epoch.Fence, error) {
	f, err := op.Act(ctx, a)
	if !errors.Is(err, epoch.ErrInDoubt) {
		return f, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inTime)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		ds, looked := op.History(ctx, operate.HistoryQuery{Partition: &a.Partition, Claim: a.Claim, Limit: 1})
		if looked == nil && len(ds) > 0 {
			return asLogged(a, ds[0]), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f, findOut(err, fmt.Sprintf("epochfence history %s --claim %s", shellQuote(a.Partition.String()), a.Claim))
		}
	}
}

// findOut adds to an in-doubt error how to find out the outcome.
func findOut(err error, how string) error {
	if errors.Is(err, epoch.ErrInDoubt) {
		return fmt.Errorf("%w; find out with: %s", err, how)
	}
	return err
}

// asLogged returns the fence after an action, from the audit log.
func asLogged(a operate.Act, d operate.Decision) epoch.Fence {
	f := a.Seen
	f.Epoch, f.Claim, f.Owner, f.Next = d.Epoch, d.Claim, d.Owner, d.To
	return f
}
