package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides how a plan is carried out against an owner that is working: evict, try again,
// and find out what became of an action whose answer was lost. plan.go makes the plan, and act.go
// decides what an action does to a fence.

const (
	// maxEvictions limits how often an action that sets a position evicts a working owner.
	maxEvictions = 10

	// lookFor limits the search in the audit log for an action whose answer was lost.
	lookFor = 15 * time.Second
)

// ErrChanged is returned when the state is no longer the one that the operator decided on. The owner may
// have been evicted, but the position was not set.
var ErrChanged = errors.New("not what you saw any more: look again, and decide again")

// DoubtError is returned when it is not known whether Act was carried out. It matches [epoch.ErrInDoubt].
type DoubtError struct {
	Act Act // its claim is in the audit log if it was carried out
	Err error
}

func (e *DoubtError) Error() string {
	return fmt.Sprintf("%v; whether it was done is in the audit log, under claim %s", e.Err, e.Act.Claim)
}

func (e *DoubtError) Unwrap() error { return e.Err }

// CarryOut carries the plan out and returns the new fence. If the owner is working, the position moves
// between the read and the action, and the action is refused without effect. CarryOut then evicts
// the owner. The position stands still until the owner has claimed again; the owner first has to
// confirm with its source, so the action usually comes before it. A skip is not tried again.
//
// CarryOut returns the errors of [Operator], [ErrChanged], [ErrNothingToDo] for a plan that has nothing
// to do, and a [DoubtError] if the answer was lost and the audit log does not have the action within 15 s.
func (p Plan) CarryOut(ctx context.Context, op Operator) (epoch.Fence, error) {
	if p.Nothing != "" {
		return epoch.Fence{}, fmt.Errorf("operate: %s %s: %w: %s", p.Act.Kind, p.Act.Partition, ErrNothingToDo, p.Nothing)
	}
	first := p.Act.Seen
	f, err := p.try(ctx, op, first)
	if !errors.Is(err, epoch.ErrMoved) || p.Act.Kind == ActSkip {
		return f, err
	}
	seen := first // an eviction compares the epoch and the claim, not the position
	for range maxEvictions {
		still, err := do(ctx, op, NewAct(ActEvict, seen, p.Act.By, p.Act.Reason))
		switch {
		case errors.Is(err, epoch.ErrStale) && seen.Claim != first.Claim:
		case err != nil:
			return epoch.Fence{}, err
		case p.numbered() && cmp.Compare(p.Act.To.Offset, still.Next) != cmp.Compare(p.Act.To.Offset, first.Next):
			return epoch.Fence{}, fmt.Errorf("the position was %d and is %d by now, past where it should go: %w", first.Next, still.Next, ErrChanged)
		default:
			if f, err := p.try(ctx, op, still); !errors.Is(err, epoch.ErrStale) {
				return f, err
			}
		}
		now, err := op.Partition(ctx, p.Act.Partition)
		if err != nil {
			return epoch.Fence{}, err
		}
		seen = now.Fence
	}
	return epoch.Fence{}, fmt.Errorf("the owner claims again too fast; pause the partition, do it, and resume it: %w", ErrChanged)
}

// try does the action once, on the fence as it is now.
func (p Plan) try(ctx context.Context, op Operator, now epoch.Fence) (epoch.Fence, error) {
	a := p.Act
	a.Seen = now
	if a.Kind == ActRun { // at the position, which may have moved
		r, err := NewRun(now, a.By, a.Reason)
		if err != nil {
			return epoch.Fence{}, err
		}
		a.To = r.To
	}
	return do(ctx, op, a)
}

// do takes action a, and finds out its outcome if the answer was lost.
func do(ctx context.Context, op Operator, a Act) (epoch.Fence, error) {
	f, err := op.Act(ctx, a)
	if !errors.Is(err, epoch.ErrInDoubt) {
		return f, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		ds, looked := op.History(ctx, HistoryQuery{Partition: &a.Partition, Claim: a.Claim, Limit: 1})
		if looked == nil && len(ds) > 0 {
			f = a.Seen
			f.Epoch, f.Claim, f.Owner, f.Next = ds[0].Epoch, ds[0].Claim, ds[0].Owner, ds[0].To
			return f, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f, &DoubtError{a, err}
		}
	}
}
