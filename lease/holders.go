package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// This file shows who has what, for operators. It writes nothing.

// Holder is the holder of a resource, for operators.
type Holder struct {
	Resource   Resource
	Owner      string    // Options.Name and the process; from [Member.Holder] as [Member.Owner]
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
		all = append(all, Holder{at, r.Owner, sinceOf(r), generationOf(item)})
	}
	slices.SortFunc(all, func(a, b Holder) int { return a.Resource.compare(b.Resource) })
	return all, nil
}

// Holder returns who has the lease of a single resource, as this member last saw it, and whether
// anybody has it. It sends no request, and knows what [Member.TryAcquire] knows. [Holder.Owner] is
// the holder's [Member.Owner], or empty if the item of the lease holds something else.
func (m *Member) Holder(name string) (Holder, bool) {
	at := Resource{Name: name}
	now := m.view.snapshot()
	last := now.leases[at]
	if !now.isHeld(last) {
		return Holder{}, false
	}
	h := Holder{Resource: at, Generation: generationOf(last.item)}
	if !last.isStrange {
		id, _, _ := strings.Cut(last.Member, "-") // the same for all registrations of a process
		h.Owner = last.Owner + "/" + id
		h.Since = sinceOf(last.leaseRecord)
	}
	return h, true
}

func sinceOf(r leaseRecord) time.Time {
	since, _ := time.Parse(time.RFC3339, r.Since)
	return since
}
