package pgsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file carries out what handlers ask of their handles: savepoints, and what Commit and
// Rollback stand for. pgxtx.go and sqldb.go have the handles.

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
	if err := t.use(); err != nil {
		return err
	}
	defer func() { t.done(err) }()
	switch c.what {
	case commitAll:
		if t.conn.PgConn().TxStatus() == abortedTransaction {
			return pgx.ErrTxCommitRollback
		}
		return nil
	case rollbackAll:
		t.undone = true
		t.savepoints.Reset()
		return nil
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
