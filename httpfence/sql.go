package httpfence

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// DBTX is what a handler behind an [SQLStore] writes through: the methods of
// sqlc's DBTX for database/sql. It has no Commit and no Rollback.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the request, in which the epoch and the answer
// are stored too: what a handler writes through it is committed exactly once, or
// not at all. It is of use until the handler has returned.
//
// It panics where there is none: behind another [Store] than an [SQLStore], or
// no [Handler] at all.
func Tx(ctx context.Context) DBTX {
	tx, ok := ctx.Value(txKey{}).(DBTX)
	if !ok {
		panic("httpfence: Tx: no transaction in this context: it is that of a request behind a Handler with an SQLStore")
	}
	return tx
}

type txKey struct{}

// SQLOptions say how an [SQLStore] works. The zero SQLOptions work.
type SQLOptions struct {
	// TablePrefix begins the names of the store's tables: letters, digits and
	// underscores, at most 32. Empty means "httpfence_".
	TablePrefix string
}

// Dialect is what differs between databases: [SQLite] and [PostgreSQL].
type Dialect interface{ String() string }

type named string

func (n named) String() string { return string(n) }

// The databases.
var (
	// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode.
	SQLite Dialect = named("SQLite")

	// PostgreSQL is PostgreSQL 13 or newer through github.com/jackc/pgx/v5/stdlib.
	PostgreSQL Dialect = named("PostgreSQL")
)

var errSkeleton = errors.New("httpfence: SQLStore: not built yet")

// SQLStore is a [Store] in a database, beside the effects. It is safe for
// concurrent use; use [OpenSQL].
type SQLStore struct{}

// Migrate makes the tables, or brings them up to date. Several processes may
// call it at once.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) error { return errSkeleton }

// OpenSQL returns a store on db, which stays the caller's. It changes nothing:
// see [Migrate].
func OpenSQL(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) (*SQLStore, error) {
	return nil, errSkeleton
}

// Serve is [Store]'s.
func (s *SQLStore) Serve(ctx context.Context, c Call, f Fingerprint, effect func(context.Context) (Answer, bool)) (Reply, error) {
	return Reply{}, errSkeleton
}

// Forget deletes the answers that were stored longer than age ago, by the
// clock of the database, and returns how many. A request that comes with such
// a key is a new one from then on: keep answers for longer than any sender may
// try again. Epochs are never deleted.
func (s *SQLStore) Forget(ctx context.Context, age time.Duration) (int64, error) {
	return 0, errSkeleton
}
