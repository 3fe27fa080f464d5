package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
)

// control is a request of a handle from [AsPgxTx] or [OpenDB] to its transaction. It travels in the
// context of an Exec, so that it passes through a Tx that a program has wrapped.
type control struct {
	what what
	name string
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
	_, err := tx.Exec(context.WithValue(ctx, controlKey{}, c), c.what.sql(c.name))
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
		t.undone, t.savepoints = true, nil
		return nil
	case begin:
		if _, err := t.exec(ctx, c.what.sql(c.name)); err != nil {
			return err
		}
		t.savepoints = append(t.savepoints, c.name)
		return nil
	}
	i := slices.Index(t.savepoints, c.name)
	if i < 0 {
		return pgx.ErrTxClosed // ended with an outer savepoint
	}
	if _, err := t.exec(ctx, c.what.sql(c.name)); err != nil {
		return err
	}
	t.savepoints = t.savepoints[:i]
	return nil
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
