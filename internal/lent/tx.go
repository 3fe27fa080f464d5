// Package lent lends a transaction on a connection of package database/sql's to
// a handler. It hides what keeps a handler's writes inside: nothing gets through
// once the handler has returned, or once the database has rolled back by itself, where
// the next statement would be committed on its own; and what a handler leaves open
// is closed.
//
// Who lends begins, commits and rolls back, and knows the database.
package lent

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Terms are those of whoever lends.
type Terms struct {
	// Package is the lender's name, which begins the errors.
	Package string

	// DB is where the connection is from.
	DB *sql.DB

	// Conn is called before each use, and returns the connection that the
	// transaction is open on. It may begin the transaction. Once a statement was
	// prepared, whose errors Judge does not see, it has to look whether the
	// transaction is still there. Its error is the end of the transaction.
	Conn func(prepared bool) (*sql.Conn, error)

	// Judge is given the error of a statement. It returns whether the
	// transaction is over, and what the handler is to see.
	Judge func(err error) (over bool, seen error)
}

// Tx is the transaction as a handler has it: the methods of sqlc's DBTX for
// database/sql, without Commit and Rollback. It is safe for concurrent use.
type Tx struct {
	terms  Terms
	ctx    context.Context // ends when the handler has returned
	cancel context.CancelFunc

	mu       sync.Mutex // held during each call
	ended    bool
	gone     error   // why there is no transaction
	prepared bool    // a statement was
	queried  bool    // rows were lent
	told     []error // of statements, as the database gave them, the last few
	stmts    []*sql.Stmt
}

// New lends a transaction until ctx ends or it is closed.
func New(ctx context.Context, t Terms) *Tx {
	tx := &Tx{terms: t}
	tx.ctx, tx.cancel = context.WithCancel(ctx)
	return tx
}

// Context ends with the handler's use of tx.
func (tx *Tx) Context() context.Context { return tx.ctx }

// Gone says why there is no transaction any more, after Close. It is nil where
// there is one, or never was.
func (tx *Tx) Gone() error { return tx.gone }

// Told reports, after Close, whether err is, or wraps, the error of a statement of
// this transaction's, as far as it is seen: the errors of rows that were lent, and
// of statements that were prepared, are not, and unseen tells that there may be such.
func (tx *Tx) Told(err error) (told, unseen bool) {
	for _, e := range tx.told {
		told = told || errors.Is(err, e)
	}
	return told, tx.prepared || tx.queried
}

// maxTold is how many are remembered.
const maxTold = 16

func (tx *Tx) tell(err error) {
	if tx.told = append(tx.told, err); len(tx.told) > maxTold {
		tx.told = slices.Delete(tx.told, 0, 1)
	}
}

// Prepared reports, after Close, whether a statement was prepared.
func (tx *Tx) Prepared() bool { return tx.prepared }

// ExecContext is [sql.Tx]'s, and so are the others.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, conn, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	r, err := conn.ExecContext(ctx, query, args...)
	return r, tx.judge(err)
}

// PrepareContext prepares a statement that [Tx.Close] closes.
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, conn, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(ctx, query) //nolint:sqlclosecheck // by Close
	if err != nil {
		return nil, tx.judge(err)
	}
	tx.stmts, tx.prepared = append(tx.stmts, stmt), true
	return stmt, nil
}

// QueryContext returns rows that are closed once [Tx.Context] ends.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, conn, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	tx.queried = true
	rows, err := conn.QueryContext(ctx, query, args...) //nolint:sqlclosecheck // the handler's, or with its context
	return rows, tx.judge(err)
}

// QueryRowContext returns a row whose Scan says what was wrong.
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, conn, err := tx.use(ctx)
	if err != nil {
		// A Row cannot be made with an error of our own, but it takes that of
		// its context.
		return tx.terms.DB.QueryRowContext(failed{ctx, err}, query)
	}
	row := conn.QueryRowContext(ctx, query, args...)
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

// use returns the connection, and a context that ends with the handler, whichever
// one it was given: rows that are still open then would keep the connection.
func (tx *Tx) use(ctx context.Context) (context.Context, *sql.Conn, error) {
	switch {
	case tx.ended:
		return ctx, nil, fmt.Errorf("%s: transaction used after its handler returned: %w", tx.terms.Package, sql.ErrTxDone)
	case tx.gone != nil:
		return ctx, nil, fmt.Errorf("%s: there is no transaction any more: %w", tx.terms.Package, tx.gone)
	}
	if err := ctx.Err(); err != nil {
		// Not left to the driver: what it has not run has not ended the
		// transaction, whatever judge would find.
		return ctx, nil, err
	}
	conn, err := tx.terms.Conn(tx.prepared)
	if err != nil {
		tx.tell(err)
		tx.gone = err // for good: a handler must not go on as if nothing was
		return ctx, nil, fmt.Errorf("%s: %w", tx.terms.Package, err)
	}
	if ctx == tx.ctx {
		return ctx, conn, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(tx.ctx, cancel)
	return ctx, conn, nil
}

func (tx *Tx) judge(err error) error {
	if err == nil {
		return nil
	}
	tx.tell(err)
	over, seen := tx.terms.Judge(err)
	if over {
		tx.gone = seen
	}
	return seen
}

// Close ends the handler's use of tx. It may be called again.
func (tx *Tx) Close() {
	tx.cancel() // also ends a call that a goroutine of the handler's still makes
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
	for _, stmt := range tx.stmts {
		_ = stmt.Close()
	}
	tx.stmts = nil
}
