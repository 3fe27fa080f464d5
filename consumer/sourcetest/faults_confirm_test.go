package sourcetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to confirm a lease wrongly.
var confirmFaults = []fault{{
	name:  "confirms after the loss",
	claim: "a process that is cut off loses its partition",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		var last epoch.Lease
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			lease, err := t.Confirm(ctx, seen)
			if err == nil {
				last = lease
			} else if last.Generation > 0 {
				return last, nil
			}
			return lease, err
		}
	}),
}, {
	name:  "confirms from what it remembers of its membership, without asking",
	claim: "attack: late claimer",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		return func(context.Context, epoch.Fence) (epoch.Lease, error) {
			return epoch.Lease{Origin: t.Origin(), Generation: 1, Owner: "me"}, nil
		}
	}),
}, {
	name:  "counts a yes that arrives after own has returned",
	claim: "a tenure that is over does not confirm",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		var last epoch.Lease
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			lease, err := t.Confirm(ctx, seen)
			if err == nil {
				last = lease
			} else if errors.Is(err, tenures.ErrEnded) {
				return last, nil
			}
			return lease, err
		}
	}),
}, {
	name:  "reports number 0",
	claim: "a tenure says which partition it is about",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			lease, err := t.Confirm(ctx, seen)
			lease.Generation = 0
			return lease, err
		}
	}),
}, {
	name:  "says lost when it does not know",
	claim: "a Confirm whose context ends gives an error, and not ErrLost",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			lease, err := t.Confirm(ctx, seen)
			if err != nil {
				err = fmt.Errorf("%w: %w", consumer.ErrLost, err)
			}
			return lease, err
		}
	}),
}, {
	name:  "confirms only once",
	claim: "confirming continues",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		var asked atomic.Bool
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			if asked.Swap(true) {
				return epoch.Lease{}, errors.New("asked too often")
			}
			return t.Confirm(ctx, seen)
		}
	}),
}, {
	name:  "does not publish what it confirms",
	claim: "Confirm publishes",
	world: brokenConfirm(func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error) {
		return func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
			seen.Next = 0
			return t.Confirm(ctx, seen)
		}
	}),
}}

func brokenConfirm(f func(t consumer.Tenure) func(context.Context, epoch.Fence) (epoch.Lease, error)) func(*broken) {
	return func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			t.confirm = f(t.Tenure)
			return &t
		}
	}
}
