package pgsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file is the handle for pgx. It only keeps which of its savepoints are open: handle.go
// decides what they do.

// AsPgxTx returns a handler's transaction as a [pgx.Tx], for functions that need one: River's
// InsertTx, [pgx.BeginFunc], a repository. What they write is committed with the fence. If tx came
// from AsPgxTx or from Begin, AsPgxTx returns it as it is.
//
// Commit and Rollback send nothing, because the sink ends the transaction. For the call, they do this:
//
//   - Commit, and a Rollback deferred behind it, do nothing. What the handler returns decides.
//   - Rollback, and an error returned: the message fails, as with any error.
//   - Rollback, and nil returned: the call's writes are undone, and the position moves past the message.
//   - a statement after Rollback, through tx or another pgx.Tx of the call: it is refused, and the message
//     fails. Through the pgx.Tx that was rolled back it only returns pgx.ErrTxClosed, as after Commit.
//
// Begin sets a savepoint. Commit and Rollback of its result release the savepoint or go back to it.
// If neither has reached the server when the handler returns, the message fails.
//
// Conn returns a closed connection, because an open one would lead around the fence. Its Config has
// the query mode, for functions that ask, and neither addresses nor passwords. Prepare is refused,
// because pgx prepares statements by itself. LargeObjects panics: use the functions in SQL, such as
// lo_from_bytea.
func AsPgxTx(tx Tx) pgx.Tx {
	if t, is := tx.(*pgxTx); is {
		return t
	}
	return &pgxTx{tx: tx}
}

// pgxTx is a transaction, or a savepoint in it.
type pgxTx struct {
	tx        Tx
	outer     *pgxTx // nil for the transaction
	savepoint string
	ended     bool
}

func (t *pgxTx) closed() bool { return t.ended || t.outer != nil && t.outer.closed() }

func (t *pgxTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.closed() {
		return nil, pgx.ErrTxClosed
	}
	inner := &pgxTx{tx: t.tx, outer: t, savepoint: txdb.Name()}
	if err := (control{what: begin, handle: txdb.Handle{Savepoint: inner.savepoint}}).do(ctx, t.tx); err != nil {
		return nil, err
	}
	return inner, nil
}

func (t *pgxTx) Commit(ctx context.Context) error { return t.end(ctx, commitAll, release) }

func (t *pgxTx) Rollback(ctx context.Context) error { return t.end(ctx, rollbackAll, rollbackTo) }

func (t *pgxTx) end(ctx context.Context, all, savepoint what) error {
	if t.closed() {
		return pgx.ErrTxClosed
	}
	t.ended = true
	if t.outer == nil {
		return control{what: all}.do(ctx, t.tx)
	}
	return control{what: savepoint, handle: txdb.Handle{Savepoint: t.savepoint}}.do(ctx, t.tx)
}

// through returns the context of a statement that is sent through t, or by a DB on t.
func (t *pgxTx) through(ctx context.Context) context.Context {
	h := txdb.HandleOf(ctx)
	if t.outer == nil || h.Savepoint != "" {
		return ctx
	}
	h.Savepoint = t.savepoint
	return h.Context(ctx)
}

func (t *pgxTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.closed() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.tx.Exec(t.through(ctx), sql, args...)
}

func (t *pgxTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed() {
		return failedRows{err: pgx.ErrTxClosed}, pgx.ErrTxClosed
	}
	return t.tx.Query(t.through(ctx), sql, args...)
}

func (t *pgxTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed() {
		return failedRow{err: pgx.ErrTxClosed}
	}
	return t.tx.QueryRow(t.through(ctx), sql, args...)
}

func (t *pgxTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed() {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.tx.SendBatch(t.through(ctx), b)
}

func (t *pgxTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if t.closed() {
		return 0, pgx.ErrTxClosed
	}
	return t.tx.CopyFrom(t.through(ctx), table, columns, rows)
}

func (t *pgxTx) Conn() *pgx.Conn {
	if own, is := t.tx.(*handlerTx); is {
		return closedConn(queryMode(own.conn))
	}
	return nil
}

func (t *pgxTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, fmt.Errorf("pgsink: Prepare in a fenced transaction: %w: send the statement, and pgx prepares it", errors.ErrUnsupported)
}

func (t *pgxTx) LargeObjects() pgx.LargeObjects {
	panic("pgsink: LargeObjects in a fenced transaction: pgx offers no way to make them; use the functions in SQL, such as lo_from_bytea")
}
