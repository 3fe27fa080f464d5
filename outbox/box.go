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
// which entries are accepted, and relay.go when they are sent. [Store] is what keeps them: pgoutbox, sqloutbox and
// casoutbox do, and settlement.go calls them.

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

// Store keeps entries in the database of the effects. TX is the transaction of the application's
// handlers; every method works in it. Packages outbox/pgoutbox, outbox/sqloutbox and
// outbox/casoutbox implement Store.
//
// IDs rise within a partition: if a transaction began after another committed, its entries have the
// higher IDs. Concurrent transactions of one partition may commit in another order than that of
// their IDs. Scan must not miss an entry that is committed late: see [Cursor].
type Store[TX any] interface {
	// Add stores an entry of the partition of m, with the offset of m, and gives it its ID. The entry is valid and has
	// its defaults.
	Add(ctx context.Context, tx TX, m epoch.Message, e Entry) error

	// Scan returns at most limit entries of p that the cursor from does not cover, in the order of
	// their IDs, and the cursor behind them. It may stop early: see Cursor.More. If an entry was
	// committed later than entries with higher IDs, Scan continues from that entry, and may return
	// entries again that it returned before.
	Scan(ctx context.Context, tx TX, p epoch.Partition, from Cursor, limit int) ([]Row, Cursor, error)

	// Load returns the entries of p with these IDs that still exist, in any order.
	Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]Row, error)

	// Next returns for each place in after the first entry of p with its Key and a higher ID, if any, in
	// any order. The places have different Keys. The argument at is the Cursor of an earlier Scan. If the
	// entry was committed after that Scan, Next returns nothing for its Key, because Scan may not have
	// read an entry with a lower ID yet. Next may leave out entries that tx has added. With the highest
	// ID in at, Next finds each entry that was committed before that Scan.
	Next(ctx context.Context, tx TX, p epoch.Partition, at Cursor, after []Place) ([]Row, error)

	// Delete deletes the entries of p with these IDs, and returns the IDs of the deleted entries.
	Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error)

	// Count returns the number of entries of p, up to limit, and the time when the oldest of them
	// was added, or zero. It is for operators.
	Count(ctx context.Context, tx TX, p epoch.Partition, limit int) (entries int, oldest time.Time, err error)

	// Retries returns those of the entries of p with these IDs that operators want to be tried now,
	// and clears the requests. A relay calls it every few seconds while its entries wait to be tried
	// again: requests for the entries of another relay stay. A Store without requests of operators
	// returns none.
	Retries(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error)
}

// Cursor is how far Scan has read a partition: all entries up to ID that were committed when Scan
// returned it. The zero Cursor is the beginning.
type Cursor struct {
	ID int64

	// Seen is the store's own text. It identifies the entries that were not committed then.
	Seen string

	// More says that Scan has stopped before limit and before the end. Stores do not read it.
	More bool
}

// ScanBytes is the [Row.Size] of all entries of a Scan after which it should stop, with More set.
const ScanBytes = 4 << 20

// Place is a position in the order of entries with one Key.
type Place struct {
	Key string
	ID  int64
}
