package outbox

import (
	"context"
	"fmt"
	"time"
)

const (
	// countLimit is how many entries are counted at most.
	countLimit = 10_000

	// countRest is the least time between two counts of a partition.
	countRest = 10 * time.Second
)

// backlog is what Options.ObserveBacklog was told last.
type backlog struct {
	counted time.Time
	told    bool
	entries int
}

// mayCount reports whether the next transaction is to count what is left.
func (r *relay[TX]) mayCount(now time.Time) bool {
	return r.o.ObserveBacklog != nil && (r.backlog.counted.IsZero() || now.Sub(r.backlog.counted) >= countRest)
}

// count counts what is left once t has done the rest.
func (r *relay[TX]) count(ctx context.Context, tx TX, t *settlement) error {
	entries, oldest, err := r.store.Count(ctx, tx, r.p, countLimit+1)
	if err != nil {
		return fmt.Errorf("outbox: count the entries of %s: %w", r.p, err)
	}
	t.left = Backlog{Partition: r.p, Entries: min(entries, countLimit), More: entries > countLimit, Oldest: oldest}
	return nil
}

// tellBacklog tells what t has counted. That nothing is left is known without.
func (r *relay[TX]) tellBacklog(t *settlement) {
	b := &r.backlog
	empty := len(r.lanes) == 0 && !r.more
	switch {
	case r.o.ObserveBacklog == nil:
		return
	case t.count:
		b.counted = time.Now()
	case empty && b.told && b.entries > 0:
		t.left = Backlog{Partition: r.p}
	default:
		return
	}
	b.told, b.entries = true, t.left.Entries
	r.o.ObserveBacklog(t.left)
}
