package sqlsink

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/lent"
)

// Tx is what a handler writes through: the methods of sqlc's DBTX for
// database/sql. It has no Commit and no Rollback, because those are the sink's;
// a handler that sends one as SQL ends with [epoch.ErrEscaped].
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
	t     *transaction
	lent  *lent.Tx
	begun bool
}

func (s *Sink) newTx(ctx context.Context, as []epoch.Advance) *Tx {
	tx := &Tx{s: s, as: as, t: s.newTransaction()}
	tx.lent = lent.New(ctx, lent.Terms{Package: "sqlsink", DB: s.db, Conn: tx.conn, Judge: tx.judge})
	return tx
}

// ExecContext runs a statement. See [sql.Tx.ExecContext].
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.lent.ExecContext(ctx, query, args...)
}

// PrepareContext prepares a statement for use in this transaction. See
// [sql.Tx.PrepareContext].
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return tx.lent.PrepareContext(ctx, query)
}

// QueryContext runs a query. See [sql.Tx.QueryContext].
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.lent.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query for one row. See [sql.Tx.QueryRowContext].
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.lent.QueryRowContext(ctx, query, args...)
}

// conn begins the transaction if this is its first use, and otherwise looks
// whether it is still there, where an error may have gone unseen.
func (tx *Tx) conn(prepared bool) (*sql.Conn, error) {
	switch {
	case !tx.begun:
		if err := tx.begin(); err != nil {
			return nil, err
		}
		tx.begun = true
	case prepared:
		in, err := tx.s.d.inTransaction(context.WithoutCancel(tx.lent.Context()), tx.t.conn)
		if err != nil {
			return nil, err
		}
		if !in {
			return nil, errNoneOpen
		}
	}
	return tx.t.conn, nil
}

// errNoneOpen is an escape: that the handler has not committed cannot be told.
var errNoneOpen = fmt.Errorf("%w: no transaction is open: either the handler has ended it, "+
	"or the database has, and the error of a prepared statement was ignored", epoch.ErrEscaped)

func (tx *Tx) begin() error {
	ctx := tx.lent.Context()
	if err := tx.t.begin(ctx); err != nil {
		return err
	}
	if _, err := tx.t.conn.ExecContext(context.WithoutCancel(ctx), setSavepoint); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// judge looks, after an error, whether the transaction is still there. If not,
// the handler's next statement would be committed at once, without the fence.
func (tx *Tx) judge(err error) (over bool, seen error) {
	if tx.s.d.classify(err) == refused {
		return false, err // it leaves the transaction alone
	}
	in, probeErr := tx.s.d.inTransaction(context.WithoutCancel(tx.lent.Context()), tx.t.conn)
	return !in || probeErr != nil, tx.s.explain(err)
}

// end gives the connection back, rolled back unless the transaction was
// committed.
func (tx *Tx) end() {
	tx.lent.Close()
	tx.t.end()
}

// settle judges what the handler did. It returns nil only if the transaction is
// the one that was begun for it, all its writes in it.
func (tx *Tx) settle(applyErr error) error {
	gone := tx.lent.Gone()
	if tx.begun {
		_, err := tx.t.conn.ExecContext(context.Background(), releaseSavepoint)
		switch {
		case err == nil || gone != nil || tx.rolledBackBy(applyErr):
		case tx.s.d.classify(err) != refused:
			applyErr = cmp.Or(applyErr, err)
		case applyErr != nil:
			return fmt.Errorf("%w, and failed: %w", epoch.ErrEscaped, applyErr)
		default:
			// There is no such savepoint: neither is this the transaction that
			// was begun, then. What was written may be committed.
			return fmt.Errorf("%w: %w", epoch.ErrEscaped, err)
		}
	}
	switch {
	case errors.Is(gone, epoch.ErrEscaped) && !errors.Is(applyErr, epoch.ErrEscaped) && !tx.rolledBackBy(applyErr):
		return errors.Join(gone, applyErr) // whatever the handler made of it
	case applyErr != nil && !tx.ours(applyErr):
		return &foreignError{applyErr}
	case applyErr != nil && tx.s.d.classify(applyErr) == doubtful && !errors.Is(applyErr, epoch.ErrInDoubt):
		return fmt.Errorf("%w: %w", epoch.ErrInDoubt, applyErr)
	case applyErr != nil:
		return applyErr
	case gone != nil:
		return fmt.Errorf("the handler hid that its transaction was gone: %w", gone)
	}
	return nil
}

// ours reports whether err, which the handler returned, may come from this
// transaction. If it is none of those that were seen, it may be of rows, or of a
// prepared statement, if it is one of the driver's at all.
func (tx *Tx) ours(err error) bool {
	told, unseen := tx.lent.Told(err)
	return told || unseen && tx.s.d.driverError(err)
}

// foreignError is of something else than this transaction, and the handler's to
// judge, whatever code it has.
type foreignError struct{ error }

func (e *foreignError) Unwrap() error { return e.error }

// rolledBackBy reports whether err, which the handler may have met on a
// statement it had prepared, where judge does not see it, explains that the
// transaction is gone.
func (tx *Tx) rolledBackBy(err error) bool {
	return tx.lent.Prepared() && err != nil && tx.s.d.classify(err) != refused
}
