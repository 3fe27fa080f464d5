package httpfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// DBTX is what a handler behind an [SQLStore] writes through: the methods of
// sqlc's DBTX for database/sql. It has no Commit and no Rollback.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the request, in which the epoch and the answer
// are stored too: what a handler writes through it is committed exactly once, or
// not at all. It is safe for concurrent use, and of use until the handler has
// returned. A handler that sends a COMMIT or ROLLBACK of its own has failed.
//
// In SQLite, some failures roll back the whole transaction: a full disk, or the
// end of the context of a statement that writes. Tx refuses all further calls then,
// but cannot for a prepared statement: after such a failure, use none again.
//
// It panics where there is none: behind another [Store] than an [SQLStore], or
// no [Handler] at all.
func Tx(ctx context.Context) DBTX {
	tx, ok := ctx.Value(txKey{}).(DBTX)
	if !ok {
		panic("httpfence: Tx: no transaction in this context: it is that of a request behind a Handler with an SQLStore")
	}
	return tx
}

type txKey struct{}

// effectTx is the DBTX of one call of a handler.
type effectTx struct {
	t      *transaction
	ctx    context.Context // ends when the handler has returned
	cancel context.CancelFunc

	mu    sync.Mutex // held during each call
	ended bool
	gone  error // why there is no transaction any more
	stmts []*sql.Stmt

	prepared bool // a statement was, whose errors judge does not see
}

func newEffectTx(t *transaction) *effectTx {
	tx := &effectTx{t: t}
	tx.ctx, tx.cancel = context.WithCancel(context.Background())
	return tx
}

func (tx *effectTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	r, err := tx.t.conn.ExecContext(ctx, query, args...)
	return r, tx.judge(err)
}

func (tx *effectTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
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

func (tx *effectTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.t.conn.QueryContext(ctx, query, args...)
	return rows, tx.judge(err)
}

func (tx *effectTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	ctx, err := tx.use(ctx)
	if err != nil {
		// A Row cannot be made with an error of our own, but it takes that of
		// its context.
		return tx.t.s.db.QueryRowContext(failed{ctx, err}, query)
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

// use returns a context that ends with the handler, whichever one it was given:
// rows that are still open then would keep the connection.
func (tx *effectTx) use(ctx context.Context) (context.Context, error) {
	switch {
	case tx.ended:
		return ctx, fmt.Errorf("httpfence: transaction used after its handler returned: %w", sql.ErrTxDone)
	case tx.gone != nil:
		return ctx, fmt.Errorf("httpfence: there is no transaction any more: %w", tx.gone)
	}
	if err := ctx.Err(); err != nil {
		return ctx, err
	}
	if tx.prepared && tx.t.s.d.ends(tx.t.conn, nil) {
		tx.gone = errGone
		return ctx, fmt.Errorf("httpfence: %w", tx.gone)
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(tx.ctx, cancel)
	return ctx, nil
}

var errGone = errors.New("the database has rolled back the transaction after a failure")

// judge looks, after an error, whether the transaction is still there. If not,
// the handler's next statement would be committed at once, whatever becomes of
// the request.
func (tx *effectTx) judge(err error) error {
	if err != nil && tx.t.s.d.ends(tx.t.conn, err) {
		tx.gone = err
	}
	return err
}

// close ends the handler's use of tx. It may be called again.
func (tx *effectTx) close() {
	tx.cancel() // also ends a call that a goroutine of the handler's still makes
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
	for _, stmt := range tx.stmts {
		_ = stmt.Close()
	}
	tx.stmts = nil
}
