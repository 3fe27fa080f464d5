package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// carryOutAll does what there is to do, one partition after the other, and joins what has
// failed.
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

// evictions is how often an owner that is at work loses its claim to an act which sets
// its position, before that is given up.
const evictions = 10

// carryOut does d to the claim that was seen. An owner that is at work moves the position
// between the look and the act, which is refused then, and nothing has happened. So its
// claim is taken away: the position stands still until it has claimed again, which takes
// it a look at its source, and the act needs none.
func carryOut(ctx context.Context, op operate.Operator, d deed, by doing) (epoch.Fence, error) {
	f, err := act(ctx, op, d.act(d.seen.Fence, by))
	if !errors.Is(err, epoch.ErrMoved) || d.kind == operate.ActSkip {
		return f, err
	}
	seen := d.seen.Fence // the epoch and the claim are compared, and an eviction compares no position
	for range evictions {
		still, err := act(ctx, op, operate.NewAct(operate.ActEvict, seen, by.by, by.reason))
		if errors.Is(err, epoch.ErrStale) && seen.Claim != d.seen.Claim {
			// The owner that was evicted has claimed again, as it should.
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
		f, err := act(ctx, op, d.act(still, by))
		if !errors.Is(err, epoch.ErrStale) {
			return f, err
		}
		if seen, err = reread(ctx, op, d); err != nil {
			return epoch.Fence{}, err
		}
	}
	return epoch.Fence{}, fmt.Errorf("the owner claims again too fast; pause the partition, do it, and resume it: %w", errChanged)
}

func reread(ctx context.Context, op operate.Operator, d deed) (epoch.Fence, error) {
	p, err := op.Partition(ctx, d.seen.Fence.Partition)
	return p.Fence, err
}

// act does a, and finds out what became of it where the answer was lost.
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

// findOut adds to an error which leaves in doubt what was done how that is found out.
func findOut(err error, how string) error {
	if errors.Is(err, epoch.ErrInDoubt) {
		return fmt.Errorf("%w; find out with: %s", err, how)
	}
	return err
}

// asLogged is the fence as the audit log has it after an act.
func asLogged(a operate.Act, d operate.Decision) epoch.Fence {
	f := a.Seen
	f.Epoch, f.Claim, f.Owner, f.Next = d.Epoch, d.Claim, d.Owner, d.To
	return f
}
