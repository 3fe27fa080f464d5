package outbox

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what a store of entries must do and may rely on, and decides nothing. pgoutbox,
// sqloutbox and casoutbox keep the entries, and settlement.go calls them.

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
