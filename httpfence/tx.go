package httpfence

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/internal/sqltx"
)

// DBTX is the interface through which a handler behind an [SQLStore] writes: the methods of sqlc's
// DBTX for database/sql. It has no Commit and no Rollback.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the request, in which the epoch and the answer
// are stored too: what a handler writes through it is committed exactly once, or
// not at all. It is safe for concurrent use, and of use until the handler has
// returned. BEGIN, COMMIT, END and ROLLBACK are not sent, and a handler that sends one
// has failed.
//
// In SQLite, some failures roll back the whole transaction: a full disk, or the
// end of the context of a statement that writes. Everything is refused then.
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

// lend gives a handler the use of t, which ends with Close.
func (t *transaction) lend() *sqltx.Guard {
	return t.s.transactions.Guard(sqltx.GuardConfig{
		Package: "httpfence", Alone: true,
		Begin:   func(context.Context) (*sqltx.Tx, error) { return t.tx, nil },
		Explain: func(err error) error { return err },
	})
}
