package natssource

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// Confirm implements [consumer.Tenure]. It renews the lease. The bucket's leader accepts that only
// if the key is as our last write left it, so nobody has taken the lease since. Confirm then checks
// the tenure again, because the answer may have arrived after our registration expired on our own
// clock.
func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	rev, err := t.confirm(ctx, seen)
	if over := t.err(); over != nil {
		err = over // whatever the answer was
	}
	if err != nil {
		return epoch.Lease{}, fmt.Errorf("natssource: confirm %s: %w", t.origin.Partition, err)
	}
	return epoch.Lease{Origin: t.origin, Generation: int64(rev), Owner: t.s.owner()}, nil
}

func (t *tenure) confirm(ctx context.Context, seen epoch.Fence) (revision, error) {
	if err := t.err(); err != nil {
		return 0, err
	}
	if seen.Partition != t.origin.Partition {
		return 0, fmt.Errorf("the fence is that of %s", seen.Partition)
	}
	if err := seen.Check(t.origin); err != nil {
		return 0, err // its position means nothing here
	}
	t.Mirror(seen)
	t.Claims(seen)
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	rev, err := t.renew(ctx)
	if err != nil {
		return 0, err
	}
	t.publish(ctx)
	return rev, nil
}
