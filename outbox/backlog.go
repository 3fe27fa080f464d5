package outbox

import (
	"context"
	"fmt"
	"time"
)

// This file decides when the entries that are left are counted and when the count is reported. The
// relay depends on neither; settlement.go counts in its transaction.

const (
	countLimit = 10_000           // entries
	countRest  = 10 * time.Second // between two counts of a partition, at least
)

type backlog struct {
	counted  time.Time
	reported bool
	entries  int
}

func (r *relay[TX]) mayCount(now time.Time) bool {
	return r.o.ObserveBacklog != nil && (r.backlog.counted.IsZero() || now.Sub(r.backlog.counted) >= countRest)
}

func (r *relay[TX]) count(ctx context.Context, tx TX, t *settlement) error {
	entries, oldest, err := r.store.Count(ctx, tx, r.p, countLimit+1)
	if err != nil {
		return fmt.Errorf("outbox: count the entries of %s: %w", r.p, err)
	}
	t.left = Backlog{Partition: r.p, Entries: min(entries, countLimit), More: entries > countLimit, Oldest: oldest}
	return nil
}

// reportBacklog calls Options.ObserveBacklog with the count of t. It needs no count to report that
// nothing is left.
func (r *relay[TX]) reportBacklog(t *settlement) {
	b := &r.backlog
	empty := len(r.lanes) == 0 && !r.more
	switch {
	case r.o.ObserveBacklog == nil:
		return
	case t.count:
		b.counted = time.Now()
	case empty && b.reported && b.entries > 0:
		t.left = Backlog{Partition: r.p}
	default:
		return
	}
	b.reported, b.entries = true, t.left.Entries
	r.o.ObserveBacklog(t.left)
}
