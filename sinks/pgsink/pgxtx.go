package pgsink

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
)

// AsPgxTx returns a handler's transaction as a [pgx.Tx], for functions that take no less:
// River's InsertTx, [pgx.BeginFunc], a repository. What they write is committed with the
// fence like everything else. Begin sets a savepoint; Commit and Rollback of what it returns
// release the savepoint or go back to it.
//
// The transaction itself is the sink's to end. Where its Commit or Rollback is called, nothing
// is committed: the call rolls back and returns an error that matches
// [epoch.ErrTxEndedByHandler], and so does the sink's Commit, whatever the handler returns.
//
// Conn returns nil, since a connection leads around the fence. Prepare is refused: pgx prepares
// statements by itself. LargeObjects panics: use the functions in SQL, such as lo_from_bytea.
func AsPgxTx(tx Tx) pgx.Tx { return &pgxTx{tx: tx, savepoints: new(int)} }

// pgxTx is a transaction, or a savepoint in it.
type pgxTx struct {
	tx         Tx
	savepoints *int   // how many have been set
	savepoint  string // empty for the transaction
	closed     bool
}

// Begin sets a savepoint.
func (t *pgxTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	*t.savepoints++
	inner := &pgxTx{tx: t.tx, savepoints: t.savepoints, savepoint: "epochfence_" + strconv.Itoa(*t.savepoints)}
	if _, err := t.tx.Exec(ctx, "savepoint "+inner.savepoint); err != nil {
		return nil, err
	}
	return inner, nil
}

// Commit releases the savepoint.
func (t *pgxTx) Commit(ctx context.Context) error { return t.end(ctx, "Commit", "release savepoint ") }

// Rollback goes back to the savepoint.
func (t *pgxTx) Rollback(ctx context.Context) error {
	return t.end(ctx, "Rollback", "rollback to savepoint ")
}

func (t *pgxTx) end(ctx context.Context, method, statement string) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	if t.savepoint != "" {
		_, err := t.tx.Exec(ctx, statement+t.savepoint)
		return err
	}
	// The sink finds it out like one that the handler sends as SQL.
	_, err := t.tx.Exec(ctx, "rollback")
	return errors.Join(fmt.Errorf("pgsink: %w: it called %s, and ending the transaction is left to the sink", epoch.ErrTxEndedByHandler, method), err)
}

func (t *pgxTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.closed {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t *pgxTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed {
		return failedRows{err: pgx.ErrTxClosed}, pgx.ErrTxClosed
	}
	return t.tx.Query(ctx, sql, args...)
}

func (t *pgxTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed {
		return failedRow{err: pgx.ErrTxClosed}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

func (t *pgxTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *pgxTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if t.closed {
		return 0, pgx.ErrTxClosed
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

func (t *pgxTx) Conn() *pgx.Conn { return nil }

func (t *pgxTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, fmt.Errorf("pgsink: Prepare in a fenced transaction: %w: send the statement, and pgx prepares it", errors.ErrUnsupported)
}

func (t *pgxTx) LargeObjects() pgx.LargeObjects {
	panic("pgsink: LargeObjects in a fenced transaction: pgx offers no way to make them; use the functions in SQL, such as lo_from_bytea")
}
