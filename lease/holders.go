package lease

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// Holder is the holder of a resource, for operators.
type Holder struct {
	Resource   Resource
	Owner      string    // Options.Name and the process
	Since      time.Time // when it took the lease, by its own clock; zero if the item does not have it
	Generation int64
}

// Holders returns who has which resource of a group, by resource. It writes nothing, and needs no
// [Member]. A resource whose holder was killed is listed until another member takes it.
func Holders(ctx context.Context, store cas.Store, group string) ([]Holder, error) {
	facts, err := store.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: holders in group %q: %w", group, err)
	}
	k := keysOf(group)
	var all []Holder
	for item, err := range store.List(ctx, k.prefix) {
		if err == nil && !facts.ListsWhole {
			item, err = store.Get(ctx, item.Key)
		}
		if err != nil {
			return nil, fmt.Errorf("lease: holders in group %q: %w", group, err)
		}
		at, isResource := k.parseResource(item.Key)
		r, isLease := leaseOf(item.Value)
		if !isResource || !isLease || !item.Live || r.Member == "" {
			continue
		}
		since, _ := time.Parse(time.RFC3339, r.Since)
		all = append(all, Holder{at, r.Owner, since, generationOf(item)})
	}
	slices.SortFunc(all, func(a, b Holder) int { return a.Resource.compare(b.Resource) })
	return all, nil
}
