package pgsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file is the handle for pgx. It also carries out what all handles ask for: savepoints, and what
// Commit and Rollback stand for. sqldb.go has the handle for database/sql.

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
// Conn returns nil, because a connection would lead around the fence. Prepare is refused, because pgx
// prepares statements by itself. LargeObjects panics: use the functions in SQL, such as
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

// Conn returns nil, because a connection would lead around the fence.
func (t *pgxTx) Conn() *pgx.Conn { return nil }

// Config has the pool's query mode and nothing else. River asks a transaction for it, before it asks
// for a Conn, because its jobs are JSON, which is sent differently in some modes. pgx connects with
// no configuration that it has not parsed itself.
func (t *pgxTx) Config() *pgxpool.Config {
	if own, is := t.tx.(*handlerTx); is {
		return &pgxpool.Config{ConnConfig: &pgx.ConnConfig{DefaultQueryExecMode: own.fenced.mode}}
	}
	return nil
}

func (t *pgxTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, fmt.Errorf("pgsink: Prepare in a fenced transaction: %w: send the statement, and pgx prepares it", errors.ErrUnsupported)
}

func (t *pgxTx) LargeObjects() pgx.LargeObjects {
	panic("pgsink: LargeObjects in a fenced transaction: pgx offers no way to make them; use the functions in SQL, such as lo_from_bytea")
}

// control is a request of a handle from [AsPgxTx] or [OpenDB] to its transaction. It travels in the
// context of an Exec, so that it passes through a Tx that a program has wrapped.
type control struct {
	what   what
	handle txdb.Handle
}

type controlKey struct{}

type what int

const (
	commitAll   what = iota // of the handle of the transaction: the sink commits it
	rollbackAll             // undoes what the call has written
	begin                   // a savepoint
	release
	rollbackTo
)

func (w what) sql(name string) string {
	switch w {
	case begin:
		return "savepoint " + name
	case release:
		return "release savepoint " + name
	case rollbackTo:
		return "rollback to savepoint " + name + "; release savepoint " + name
	case commitAll:
		return "commit"
	default:
		return "rollback"
	}
}

// do sends c to tx. A Tx that is not the sink's and does not pass the context on gets c as SQL.
func (c control) do(ctx context.Context, tx Tx) error {
	_, err := tx.Exec(context.WithValue(ctx, controlKey{}, c), c.what.sql(c.handle.Savepoint))
	return err
}

func (t *handlerTx) control(ctx context.Context, c control) (err error) {
	if err := t.lock(); err != nil {
		return err
	}
	defer func() { t.done(err) }()
	switch c.what { // what sends nothing must not wait for the turn: ctx may be over, and the handler ignore the error
	case commitAll:
		return t.commits()
	case rollbackAll:
		t.undone = true
		if t.fenced.turn != nil && t.sent {
			t.fenced.turn.blame(t.call) // before others have the connection that it leaves
		}
		t.savepoints.Reset()
		return nil
	}
	if err := t.takeTurn(ctx); err != nil {
		return err
	}
	send := func(text string) error {
		_, err := t.exec(ctx, text)
		return err
	}
	switch c.what {
	case begin:
		err = t.savepoints.Begin(c.handle, send)
	case release:
		err = t.savepoints.Commit(c.handle, send)
	default:
		err = t.savepoints.Rollback(c.handle, send)
	}
	return closedTo(c.handle, err)
}

// commits returns an error if the transaction cannot commit any more. Without the turn, others use the connection.
func (t *handlerTx) commits() error {
	if turn := t.fenced.turn; turn != nil && !t.has {
		switch turn.blame(-1) {
		case -1:
			return nil
		case t.call:
			return pgx.ErrTxCommitRollback
		default:
			return errBeside
		}
	}
	if t.conn.PgConn().TxStatus() == abortedTransaction {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// closedTo returns pgx's error instead of that of database/sql if h is a handle of pgx.
func closedTo(h txdb.Handle, err error) error {
	if !h.DB && err == sql.ErrTxDone { //nolint:errorlint // it is returned as it is
		return pgx.ErrTxClosed
	}
	return err
}

// undo undoes what the call has written, if its handle was rolled back and the call is alone. It
// rolls the transaction back and begins an empty one in its place.
func (t *handlerTx) undo(ctx context.Context) error {
	if !t.undone || !t.sent {
		return nil
	}
	t.fenced.sink.undoing.Do(func() {
		t.fenced.sink.options.Logger.Warn("pgsink: a handler has rolled its transaction back and returned nil: its message counts as applied, and what it wrote is undone", "partition", t.as.String())
	})
	t.undone, t.sent = false, false
	return t.fenced.restart(ctx)
}

func (t *fenced) restart(ctx context.Context) error {
	if rollback(ctx, t.conn, t.xid) {
		return epoch.ErrTxEndedByHandler
	}
	if t.conn.IsClosed() {
		return inDoubt(errors.New("connection lost"))
	}
	t.xid, t.begun = nil, false
	err := t.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin again without what the handler wrote: %w", err)
	}
	return nil
}
