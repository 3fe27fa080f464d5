package pgoutbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// DBTX is a transaction to work in, such as [pgsink.Tx].
//
// [pgsink.Tx]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Tx
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// DB is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// DefaultSchema is the schema that an empty name means.
const DefaultSchema = "epochfence_outbox"

// Store is an [outbox.Store] for the transactions TX of the application, such as
// pgsink.Tx. It is safe for concurrent use.
type Store[TX DBTX] struct{ schema string }

var errSkeleton = errors.New("pgoutbox: not built yet")

// Migrate makes a schema, "" for [DefaultSchema], or brings it up to date.
// Several processes may call it at once.
func Migrate(ctx context.Context, db DB, schema string) error { return errSkeleton }

// Grant lets role use a schema, "" for [DefaultSchema], as an application does.
func Grant(ctx context.Context, db DB, schema, role string) error { return errSkeleton }

// Open returns a store on the schema that [Migrate] made, "" for [DefaultSchema].
func Open[TX DBTX](ctx context.Context, db DB, schema string) (*Store[TX], error) {
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
