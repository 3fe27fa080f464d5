package operate

import (
	"context"
	"maps"

	"github.com/epochfence/epochfence/epoch"
)

// This file finds, in the audit log, which partitions are halted now. It reads a bounded number of
// entries for any number of partitions.

// Halts reads at most haltPages pages of the audit log.
const (
	haltsAtOnce = 200 // entries of a page
	haltPages   = 50
)

// Halts returns the partitions of ps that have halted, each with its halt in the audit log. Since then, such
// a partition has not been claimed, has not moved and has not recovered. Halts may miss a partition
// if more than 10,000 halts and recoveries were recorded after its own.
func Halts(ctx context.Context, op Operator, ps []Partition) (map[epoch.Partition]*Decision, error) {
	found := map[epoch.Partition]*Decision{}
	open := map[epoch.Partition]Partition{} // partitions without an entry so far
	for _, p := range ps {
		open[p.Fence.Partition] = p
	}
	q := HistoryQuery{Kinds: []DecisionKind{DecidedHalt, DecidedRecovery}, Limit: haltsAtOnce}
	if len(ps) == 1 {
		q.Partition, q.Limit = &ps[0].Fence.Partition, 1
	}
	for range haltPages {
		ds, err := op.History(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, d := range ds {
			p, first := open[d.Partition]
			if !first {
				continue
			}
			delete(open, d.Partition)
			if d.Kind == DecidedHalt && !d.At.Before(p.ClaimedAt) && d.At.After(p.AdvancedAt) {
				found[d.Partition] = &d
			}
		}
		if len(ds) < q.Limit {
			break
		}
		last := ds[len(ds)-1]
		maps.DeleteFunc(open, func(_ epoch.Partition, p Partition) bool { // older entries do not count
			return p.ClaimedAt.After(last.At) || p.AdvancedAt.After(last.At)
		})
		if len(open) == 0 {
			break
		}
		q.Before = last.ID
	}
	return found, nil
}

// Fences returns the fences of ps.
func Fences(ps []Partition) []epoch.Fence {
	fs := make([]epoch.Fence, len(ps))
	for i, p := range ps {
		fs[i] = p.Fence
	}
	return fs
}
