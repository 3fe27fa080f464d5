package sqlsink

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sqltx"
)

// Tx is what a handler writes through: the methods of sqlc's DBTX for
// database/sql. It has no Commit and no Rollback, because those are the sink's;
// a handler that sends one as SQL ends with [epoch.ErrTxEndedByHandler].
//
// The transaction begins at the first call of a method. It is of no use once
// the handler has returned: its methods fail, rows left open are closed and
// statements left open too. A Tx is safe for concurrent use.
//
// After an error for which the database has rolled back the transaction by
// itself, such as a full disk, all further calls of Tx fail. Those of a statement
// that was prepared do not, and each is committed by itself: after such a failure
// use none again. A statement with ON CONFLICT ROLLBACK ends the transaction as a
// ROLLBACK does: do not use it.
type Tx struct {
	s     *Sink
	as    []epoch.Advance
	guard *sqltx.Guard
}

func (s *Sink) newTx(ctx context.Context, as []epoch.Advance) *Tx {
	guard := s.transactions.Guard(ctx, sqltx.GuardConfig{Package: "sqlsink", Begin: s.begin, Explain: s.explain})
	return &Tx{s: s, as: as, guard: guard}
}

// ExecContext runs a statement. See [sql.Tx.ExecContext].
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.guard.ExecContext(ctx, query, args...)
}

// PrepareContext prepares a statement for use in this transaction. See
// [sql.Tx.PrepareContext].
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return tx.guard.PrepareContext(ctx, query)
}

// QueryContext runs a query. See [sql.Tx.QueryContext].
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.guard.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query for one row. See [sql.Tx.QueryRowContext].
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.guard.QueryRowContext(ctx, query, args...)
}

// begin begins a transaction for a handler.
func (s *Sink) begin(ctx context.Context) (*sqltx.Tx, error) {
	t, err := s.transactions.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := t.Conn.ExecContext(context.WithoutCancel(ctx), setSavepoint); err != nil {
		t.End()
		return nil, fmt.Errorf("begin: %w", err)
	}
	return t, nil
}

// end gives the connection back, rolled back unless the transaction was
// committed.
func (tx *Tx) end() {
	tx.guard.Close()
	if t := tx.guard.Tx(); t != nil {
		t.End()
	}
}

// judge says what the handler did. It returns nil only if the transaction is
// the one that was begun for it, all its writes in it.
func (tx *Tx) judge(applyErr error) error {
	gone := tx.guard.Gone()
	if t := tx.guard.Tx(); t != nil {
		_, err := t.Conn.ExecContext(context.Background(), releaseSavepoint)
		switch {
		case err == nil || gone != nil || tx.rolledBackBy(applyErr):
		case tx.classify(err) != sqltx.Refused:
			applyErr = cmp.Or(applyErr, err)
		case applyErr != nil:
			return fmt.Errorf("%w, and failed: %w", epoch.ErrTxEndedByHandler, applyErr)
		default:
			// There is no such savepoint: neither is this the transaction that
			// was begun, then. What was written may be committed.
			return fmt.Errorf("%w: %w", epoch.ErrTxEndedByHandler, err)
		}
	}
	switch {
	case errors.Is(gone, epoch.ErrTxEndedByHandler) && !errors.Is(applyErr, epoch.ErrTxEndedByHandler) && !tx.rolledBackBy(applyErr):
		return errors.Join(gone, applyErr) // whatever the handler made of it
	case applyErr != nil && !tx.ours(applyErr):
		return &foreignError{applyErr}
	case applyErr != nil && tx.classify(applyErr) == sqltx.InDoubt && !errors.Is(applyErr, epoch.ErrInDoubt):
		return fmt.Errorf("%w: %w", epoch.ErrInDoubt, applyErr)
	case applyErr != nil:
		return applyErr
	case gone != nil:
		return fmt.Errorf("the handler hid that its transaction was gone: %w", gone)
	}
	return nil
}

func (tx *Tx) classify(err error) sqltx.Class { return tx.s.d.transactions().Classify(err) }

// ours reports whether err, which the handler returned, may come from this
// transaction. If it is none of those that were seen, it may be of rows, or of a
// prepared statement, if it is one of the driver's at all.
func (tx *Tx) ours(err error) bool {
	told, unseen := tx.guard.Told(err)
	return told || unseen && tx.s.d.transactions().FromDriver(err)
}

// foreignError is of something else than this transaction, and the handler's to
// judge, whatever code it has.
type foreignError struct{ error }

func (e *foreignError) Unwrap() error { return e.error }

// rolledBackBy reports whether err, which the handler may have met on a
// statement it had prepared, where the guard does not see it, explains that the
// transaction is gone.
func (tx *Tx) rolledBackBy(err error) bool {
	return tx.guard.Prepared() && err != nil && tx.classify(err) != sqltx.Refused
}
