package sqloutbox

import (
	"context"
	"database/sql"
	"errors"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// DBTX is a transaction to work in, such as [*sqlsink.Tx].
//
// [*sqlsink.Tx]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/sqlsink#Tx
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Options say how a [Store] works. The zero Options work.
type Options struct {
	// TablePrefix begins the names of the tables: letters, digits and
	// underscores, at most 32. Empty means "epochfence_outbox_".
	TablePrefix string
}

// Store is an [outbox.Store] for the transactions TX of the application, such as
// *sqlsink.Tx. It is safe for concurrent use.
type Store[TX DBTX] struct{ prefix string }

var errSkeleton = errors.New("sqloutbox: not built yet")

// Migrate makes the tables in a SQLite database, or brings them up to date.
// Several processes may call it at once.
func Migrate(ctx context.Context, db *sql.DB, o Options) error { return errSkeleton }

// Open returns a store on the tables that [Migrate] made in db.
func Open[TX DBTX](ctx context.Context, db *sql.DB, o Options) (*Store[TX], error) {
	return nil, errSkeleton
}

// Add is [outbox.Store]'s, and so are the others.
func (s *Store[TX]) Add(ctx context.Context, tx TX, p epoch.Partition, e outbox.Entry) error {
	return errSkeleton
}

// Scan is [outbox.Store]'s.
func (s *Store[TX]) Scan(ctx context.Context, tx TX, p epoch.Partition, after int64, limit int) ([]outbox.Row, error) {
	return nil, errSkeleton
}

// Next is [outbox.Store]'s.
func (s *Store[TX]) Next(ctx context.Context, tx TX, p epoch.Partition, key string, after int64) (outbox.Row, bool, error) {
	return outbox.Row{}, false, errSkeleton
}

// Load is [outbox.Store]'s.
func (s *Store[TX]) Load(ctx context.Context, tx TX, p epoch.Partition, id int64) (outbox.Row, bool, error) {
	return outbox.Row{}, false, errSkeleton
}

// Delete is [outbox.Store]'s.
func (s *Store[TX]) Delete(ctx context.Context, tx TX, p epoch.Partition, id int64) (bool, error) {
	return false, errSkeleton
}
