package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
)

// This file has what a handler calls: Add writes an entry in the handler's own transaction. It also
// decides when the entries that are left are counted, and when the count is reported. entry.go decides
// which entries are accepted, and relay.go when they are sent.

// Box is an outbox: handlers add entries to it, and its Relay sends them. It is safe for concurrent
// use and needs no closing.
type Box[TX any] struct {
	store  Store[TX]
	o      Options[TX]
	client *http.Client

	climbs   climbs
	troubles *troubles.Log[*lane]
}

// New returns a box over store.
func New[TX any](store Store[TX], o Options[TX]) (*Box[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, errors.New("outbox: New needs a store")
	}
	return &Box[TX]{store: store, o: o, client: newClient(o.Client, o.Concurrency), troubles: troubles.New[*lane](o.Logger, "keys")}, nil
}

// Add adds an entry in tx, the handler's transaction, for the partition of m, the handler's
// message. In OnAnswer and OnRefused, give it [Sent.Message], and in the work under a lock
// lease.Claimed.Message. [Box.Relay]
// sends the entry after the transaction has committed: set consumer.Handlers.Background to it, or
// under a lock call lease.Claimed.Background. An error that matches [ErrEntry] is [consumer.Permanent].
func (b *Box[TX]) Add(ctx context.Context, tx TX, m epoch.Message, e Entry) error {
	e, err := e.complete()
	if err != nil {
		return consumer.Permanent(err)
	}
	if err := b.store.Add(ctx, tx, m, e); err != nil {
		return fmt.Errorf("outbox: add an entry for the message %s at offset %d: %w", m.Partition, m.Offset, err)
	}
	return nil
}

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
