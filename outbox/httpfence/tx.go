package httpfence

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file lends the transaction of a request to its handler. Which statements of the handler are
// sent is decided in internal/sql/sqltx/effect.go.

// DBTX is the interface through which a handler writes to an [SQLStore]. It has the methods of
// sqlc's DBTX for database/sql, and no Commit or Rollback.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the request. The epoch and the answer are stored in it too, so the
// handler's writes through it are committed exactly once or not at all. It is safe for concurrent
// use, until the handler has returned. BEGIN, COMMIT, END and ROLLBACK are not sent to the
// database, and a handler that tries one has failed.
//
// In SQLite, some failures roll back the whole transaction, such as a full disk or the end of the
// context of a statement that writes. The transaction then refuses all statements.
//
// Tx panics if the request is not behind a [Handler] with an [SQLStore].
func Tx(ctx context.Context) DBTX {
	tx, ok := ctx.Value(txKey{}).(DBTX)
	if !ok {
		panic("httpfence: Tx: no transaction in this context: it is that of a request behind a Handler with an SQLStore")
	}
	return tx
}

type txKey struct{}

func (t *transaction) lend() *sqltx.Guard {
	return t.s.transactions.Guard(sqltx.GuardConfig{
		Package: "httpfence", Alone: true,
		Begin:   func(context.Context) (*sqltx.Tx, error) { return t.tx, nil },
		Explain: func(err error) error { return err },
	})
}
