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

	// Next returns the first entry of p and key with an ID above after, if
	// there is one.
	Next(ctx context.Context, tx TX, p epoch.Partition, key string, after int64) (row Row, ok bool, err error)

	// Load returns the entry of p with that ID, if it is still there.
	Load(ctx context.Context, tx TX, p epoch.Partition, id int64) (row Row, ok bool, err error)

	// Delete deletes the entry of p with that ID, and reports whether it was
	// there.
	Delete(ctx context.Context, tx TX, p epoch.Partition, id int64) (ok bool, err error)
}
