package sqlsink

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
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
// itself, such as a full disk, all further calls fail. A statement with ON
// CONFLICT ROLLBACK ends the transaction as a ROLLBACK does: do not use it.
type Tx struct {
	s      *Sink
	as     []epoch.Advance
	ctx    context.Context // ends when the handler has returned
	cancel context.CancelFunc

	mu    sync.Mutex // held during each call
	t     *transaction
	begun bool
	ended bool
	gone  error // why there is no transaction: it could not begin, or was rolled back by the database
	stmts []*sql.Stmt

	prepared bool // a statement was
}

func (s *Sink) newTx(ctx context.Context, as []epoch.Advance) *Tx {
	tx := &Tx{s: s, as: as, t: s.newTransaction()}
	tx.ctx, tx.cancel = context.WithCancel(ctx)
	return tx
}

// ExecContext runs a statement. See [sql.Tx.ExecContext].
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	r, err := tx.t.conn.ExecContext(ctx, query, args...)
	return r, tx.judge(err)
}

// PrepareContext prepares a statement for use in this transaction. See
// [sql.Tx.PrepareContext].
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := tx.t.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, tx.judge(err)
	}
	tx.stmts, tx.prepared = append(tx.stmts, stmt), true
	return stmt, nil
}

// QueryContext runs a query. See [sql.Tx.QueryContext].
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.t.conn.QueryContext(ctx, query, args...)
	return rows, tx.judge(err)
}

// QueryRowContext runs a query for one row. See [sql.Tx.QueryRowContext].
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		// A Row cannot be made with an error of our own, but it takes that of
		// its context.
		return tx.s.db.QueryRowContext(failed{ctx, err}, query)
	}
	row := tx.t.conn.QueryRowContext(ctx, query, args...)
	_ = tx.judge(row.Err()) // Scan returns it
	return row
}

// failed is a context that has ended with an error of our choice.
type failed struct {
	context.Context
	err error
}

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (f failed) Done() <-chan struct{} { return ended }
func (f failed) Err() error            { return f.err }

// use begins the transaction if this is its first use, and returns a context
// that ends with the handler, whichever one it was given: rows that are still
// open then would keep the connection forever.
func (tx *Tx) use(ctx context.Context) (context.Context, error) {
	switch {
	case tx.ended:
		return ctx, fmt.Errorf("sqlsink: transaction used after its handler returned: %w", sql.ErrTxDone)
	case tx.gone != nil:
		return ctx, fmt.Errorf("sqlsink: there is no transaction any more: %w", tx.gone)
	}
	if err := ctx.Err(); err != nil {
		// Not left to the driver: what it has not run has not ended the
		// transaction, whatever judge would find.
		return ctx, err
	}
	if !tx.begun {
		if err := tx.begin(); err != nil {
			tx.gone = err // for good: a handler must not go on as if nothing was
			return ctx, fmt.Errorf("sqlsink: %w", err)
		}
		tx.begun = true
	}
	if ctx == tx.ctx {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(tx.ctx, cancel)
	return ctx, nil
}

func (tx *Tx) begin() error {
	if err := tx.t.begin(tx.ctx); err != nil {
		return err
	}
	if _, err := tx.t.conn.ExecContext(context.WithoutCancel(tx.ctx), setSavepoint); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// judge looks, after an error, whether the transaction is still there. If not,
// the handler's next statement would be committed at once, without the fence.
func (tx *Tx) judge(err error) error {
	if err == nil {
		return nil
	}
	if c := tx.s.d.classify(err); c == refused {
		return err // it leaves the transaction alone
	}
	err = tx.s.explain(err)
	if in, probeErr := tx.s.d.inTransaction(context.WithoutCancel(tx.ctx), tx.t.conn); !in || probeErr != nil {
		tx.gone = err
	}
	return err
}

// close ends the handler's use of tx.
func (tx *Tx) close() {
	tx.cancel() // also ends a call that a goroutine of the handler's still makes
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
	for _, stmt := range tx.stmts {
		_ = stmt.Close()
	}
	tx.stmts = nil
}

// end gives the connection back, rolled back unless the transaction was
// committed.
func (tx *Tx) end() {
	tx.close()
	tx.t.end()
}

// settle judges what the handler did. It returns nil only if the transaction is
// the one that was begun for it, all its writes in it.
func (tx *Tx) settle(applyErr error) error {
	if tx.begun {
		_, err := tx.t.conn.ExecContext(context.WithoutCancel(tx.ctx), releaseSavepoint)
		switch {
		case err == nil || tx.gone != nil || tx.rolledBackBy(applyErr):
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
	case applyErr != nil && tx.s.d.classify(applyErr) == doubtful && !errors.Is(applyErr, epoch.ErrInDoubt):
		return fmt.Errorf("%w: %w", epoch.ErrInDoubt, applyErr)
	case applyErr != nil:
		return applyErr
	case tx.gone != nil:
		return fmt.Errorf("the handler hid that its transaction was gone: %w", tx.gone)
	}
	return nil
}

// rolledBackBy reports whether err, which the handler may have met on a
// statement it had prepared, where judge does not see it, explains that the
// transaction is gone.
func (tx *Tx) rolledBackBy(err error) bool {
	return tx.prepared && err != nil && tx.s.d.classify(err) != refused
}
