package outbox

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Store keeps entries in a table beside the effects. TX is the transaction of the application's
// handlers; every method works in it. Packages outbox/pgoutbox and outbox/sqloutbox implement
// Store.
//
// IDs rise within a partition: an entry whose transaction began after another one committed has
// the higher ID. Transactions of one partition may run beside each other, so one may commit later
// and have lower IDs. Scan must not miss those: see [Cursor].
type Store[TX any] interface {
	// Add stores an entry of p, which is complete, and gives it its ID.
	Add(ctx context.Context, tx TX, p epoch.Partition, e Entry) error

	// Scan returns entries of p that have not been read up to from, in the order of
	// their IDs, at most limit, and the cursor behind them. It may return some that
	// have been read, and are still there, once more: where there is one that was
	// committed later than others with higher IDs, it continues from that.
	Scan(ctx context.Context, tx TX, p epoch.Partition, from Cursor, limit int) ([]Row, Cursor, error)

	// Load returns those of these entries of p that are still there, in any
	// order.
	Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]Row, error)

	// Next returns the entries of p that follow these: of each Key the first with
	// a higher ID, if there is one, in any order. No Key is given twice. It leaves that
	// entry out, and so its Key, if it was not committed yet when Scan returned at: one
	// with a lower ID may have been committed before it, and not been read. One that tx
	// has added itself it may leave out.
	Next(ctx context.Context, tx TX, p epoch.Partition, at Cursor, after []Place) ([]Row, error)

	// Delete deletes these entries of p, and returns the IDs of those that were
	// there.
	Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error)

	// Count returns how many entries of p there are, up to limit, and when the oldest of
	// those was added; zero if there is none. It is for operators.
	Count(ctx context.Context, tx TX, p epoch.Partition, limit int) (entries int, oldest time.Time, err error)
}

// Retrier is implemented by a [Store] whose entries operators can work with. The relay calls it
// every few seconds while entries wait to be tried again.
type Retrier[TX any] interface {
	// Retries returns the IDs of entries of p that operators want to be tried now, and
	// forgets that they do.
	Retries(ctx context.Context, tx TX, p epoch.Partition) ([]int64, error)
}

// Cursor is how far Scan has read a partition: all entries up to ID that were committed when Scan
// returned it. The zero Cursor is the beginning.
type Cursor struct {
	ID int64

	// Seen is the store's own. It tells which entries were not committed then,
	// whatever their IDs are.
	Seen string
}

// Place is a position in the order of entries with one Key.
type Place struct {
	Key string
	ID  int64
}
