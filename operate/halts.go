package operate

import (
	"context"
	"maps"

	"github.com/epochfence/epochfence/epoch"
)

// haltsAtOnce is how many entries of the audit log [Halts] reads at a time, and
// haltPages how often it does so at most.
const (
	haltsAtOnce = 200
	haltPages   = 50
)

// Halts returns those of ps that have halted, each with the entry of the audit log that
// says so: the partition was neither claimed nor has it moved since, nor was it found well
// again. Where more than 10,000 halts were recorded since, it may miss one.
func Halts(ctx context.Context, op Operator, ps []Partition) (map[epoch.Partition]*Decision, error) {
	found := map[epoch.Partition]*Decision{}
	open := map[epoch.Partition]Partition{} // those of which no entry was seen
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
		maps.DeleteFunc(open, func(_ epoch.Partition, p Partition) bool { // what is older does not count
			return p.ClaimedAt.After(last.At) || p.AdvancedAt.After(last.At)
		})
		if len(open) == 0 {
			break
		}
		q.Before = last.ID
	}
	return found, nil
}

// Fences are those of ps.
func Fences(ps []Partition) []epoch.Fence {
	fs := make([]epoch.Fence, len(ps))
	for i, p := range ps {
		fs[i] = p.Fence
	}
	return fs
}
