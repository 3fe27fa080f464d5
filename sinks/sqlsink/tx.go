package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/sql/stopat"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file is the transaction as a handler has it. It decides whether a call's work can be committed.
// Which statements of a handler are sent is decided in internal/sql/sqltx/effect.go.

// Tx is the transaction that a handler writes through. It has the methods of sqlc's DBTX for
// database/sql, and no Commit and no Rollback, because the sink ends the transaction.
//
// The transaction begins at the first call of a method. A Tx belongs to one call of a
// handler. Once the handler has returned, everything that came from the Tx is refused,
// and rows and statements that it left open are closed. A Tx is safe for concurrent use.
//
// The sink checks each statement before it sends it:
//
//   - BEGIN, COMMIT, END and ROLLBACK, and in MariaDB what commits by itself, such as CREATE TABLE, are
//     not sent. They return an error that matches
//     [epoch.ErrTxControl], and the message fails whatever the handler returns.
//   - SAVEPOINT, RELEASE, ROLLBACK TO, PRAGMA, ATTACH, DETACH, VACUUM and everything
//     about temporary tables, views and triggers is not sent in a transaction with other
//     messages. It returns an error that matches [epoch.ErrOwnTransaction], and the
//     consumer calls the handler again in a transaction of its own. There it is sent.
//     The connection is closed afterwards, except for savepoints, so settings that all
//     connections need belong into the data source name.
//
// If the database rolls the transaction back by itself, after ON CONFLICT ROLLBACK, RAISE(ROLLBACK) or
// an interrupted write, nothing more is sent, and the message fails whatever the handler returns. After
// a full disk, the partition halts instead ([epoch.ErrUnhealthy]). Nothing more is sent either once the transaction was abandoned
// ([epoch.ErrAbandoned]).
type Tx struct {
	s    *Sink
	as   []epoch.Advance
	call *sqltx.Call
}

// ExecContext runs a statement. See [sql.Tx.ExecContext].
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.call.ExecContext(ctx, query, args...)
}

// PrepareContext prepares a statement for this transaction. See [sql.Tx.PrepareContext].
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return tx.call.PrepareContext(ctx, query)
}

// QueryContext runs a query. See [sql.Tx.QueryContext].
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.call.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query for one row. See [sql.Tx.QueryRowContext].
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.call.QueryRowContext(ctx, query, args...)
}

type shared struct {
	s     *Sink
	as    []epoch.Advance
	guard *sqltx.Guard
	mark  string // the savepoint that shows whether the transaction is still ours
}

func (s *Sink) newShared(ctx context.Context, as []epoch.Advance, calls int) *shared {
	t := &shared{s: s, as: as, mark: sqltx.SavepointName()}
	t.guard = s.transactions.Guard(sqltx.GuardConfig{
		Package: "sqlsink", Begin: t.begin, Explain: t.explain, Alone: calls == 1, Stop: stopat.Of(ctx),
	})
	return t
}

func (t *shared) begin(ctx context.Context) (*sqltx.Tx, error) {
	tx, err := t.s.transactions.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Conn.ExecContext(context.WithoutCancel(ctx), `SAVEPOINT `+t.mark); err != nil {
		tx.End()
		return nil, fmt.Errorf("begin: %w", err)
	}
	return tx, nil
}

func (t *shared) end(err error) error {
	tx := t.guard.Tx()
	if tx == nil {
		return err
	}
	if tx.End(); tx.Kept {
		return fmt.Errorf("%w: a table whose engine has no transactions, as MyISAM and Aria, keeps what was rolled back: %w", epoch.ErrTxEndedByHandler, err)
	}
	return err
}

func (t *shared) runAll(ctx context.Context, o epoch.TxOptions, calls []func(context.Context, *Tx) error) error {
	gone := make(chan struct{})
	stop := o.AfterAbandoned(func() {
		defer close(gone)
		t.guard.Abandon()
	})
	abandoned := sync.OnceValue(func() bool {
		if stop() {
			return false
		}
		<-gone // only one goroutine may roll back at a time
		return true
	})
	defer abandoned() // also when a call panics
	var err error
	for i, call := range calls {
		if err = t.run(ctx, i, call); err != nil || t.guard.Abandoned() {
			break
		}
	}
	if abandoned() {
		return epoch.Abandoned(err)
	}
	return err
}

// run returns nil only if the transaction can continue, with all the call's writes in it.
func (t *shared) run(ctx context.Context, i int, do func(context.Context, *Tx) error) error {
	c := t.guard.Call(ctx)
	defer c.Close() // also when it panics
	err := inert.Error(do(c.Context(), &Tx{s: t.s, as: t.as, call: c}))
	c.Close()
	gone := t.guard.Gone()
	switch {
	case c.Refused() != nil:
		return callError(i, c.Refused(), err)
	case gone != nil && t.guard.Tx() == nil && err == nil:
		return fmt.Errorf("the handler hid that its transaction could not begin: %w", gone)
	case gone != nil && t.guard.Told(err) == nil:
		return callError(i, t.doubt(gone), err)
	case err != nil:
		return t.judge(err)
	case c.Left() != nil:
		return callError(i, c.Left(), nil)
	}
	return nil
}

func callError(i int, did, returned error) error {
	if returned != nil && !errors.Is(returned, did) {
		did = fmt.Errorf("%w; the handler returned: %w", did, returned)
	}
	return &epoch.CallError{Call: i, Err: did}
}

// judge classifies an error that a call returned: of this transaction, or the handler's own.
func (t *shared) judge(err error) error {
	told := t.guard.Told(err)
	if told == nil {
		return &foreignError{err}
	}
	return t.doubtOf(told, err)
}

func (t *shared) doubt(err error) error { return t.doubtOf(err, err) }

// doubtOf marks err if what the database said leaves the outcome open.
func (t *shared) doubtOf(said, err error) error {
	if t.s.d.transactions().Classify(said) == sqltx.InDoubt && !errors.Is(err, epoch.ErrInDoubt) {
		return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
	}
	return err
}

// prove checks that the transaction is the one that was begun, so that all writes are in it. If it
// is not, some may be committed.
func (t *shared) prove(tx *sqltx.Tx) error {
	_, err := tx.Conn.ExecContext(context.Background(), `RELEASE SAVEPOINT `+t.mark)
	if err != nil && t.s.d.transactions().Classify(err) == sqltx.Refused {
		return fmt.Errorf("%w: %w", epoch.ErrTxEndedByHandler, err)
	}
	if err == nil && tx.Spoiled() != "" && t.s.q.unshadow != "" {
		_, err = tx.Conn.ExecContext(context.Background(), t.s.q.unshadow)
	}
	return err
}

func (t *shared) explain(err error) error {
	if own := t.ownSetting(err); own != nil {
		return own
	}
	return t.s.explain(err)
}

// ownSetting returns err as the handler's own if the handler has made the connection read-only, by
// PRAGMA query_only for instance, and otherwise nil.
func (t *shared) ownSetting(err error) error {
	tx := t.guard.Tx()
	if tx == nil || tx.Spoiled() == "" || !t.s.d.transactions().ReadOnly(err) {
		return nil
	}
	return &foreignError{fmt.Errorf("the handler has changed the connection by %q: %w", tx.Spoiled(), err)}
}

// foreignError is not of this transaction. The handler classifies it, whatever its code.
type foreignError struct{ error }

func (e *foreignError) Unwrap() error { return e.error }
