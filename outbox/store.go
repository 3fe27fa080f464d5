package outbox

import (
	"context"

	"github.com/epochfence/epochfence/epoch"
)

// Store keeps entries in a table beside the effects. TX is what the handlers of
// the application write through; every method works in that transaction alone.
// Packages outbox/pgoutbox and outbox/sqloutbox hold the ones there are.
//
// IDs rise within a partition: an entry that is added by a transaction that
// began after another one committed has the higher ID. The transactions of one
// partition are fenced, so no others are compared.
type Store[TX any] interface {
	// Add stores an entry of p, which is complete, and gives it its ID.
	Add(ctx context.Context, tx TX, p epoch.Partition, e Entry) error

	// Scan returns the first entries of p with an ID above after, in order, at
	// most limit.
	Scan(ctx context.Context, tx TX, p epoch.Partition, after int64, limit int) ([]Row, error)

	// Load returns those of these entries of p that are still there, in any
	// order.
	Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]Row, error)

	// Next returns the entries of p that follow these: of each Key the first with
	// a higher ID, if there is one, in any order. No Key is given twice.
	Next(ctx context.Context, tx TX, p epoch.Partition, after []Place) ([]Row, error)

	// Delete deletes these entries of p, and returns the IDs of those that were
	// there.
	Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error)
}

// Place is one in the order of the entries with a Key.
type Place struct {
	Key string
	ID  int64
}
