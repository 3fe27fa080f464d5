package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// GuardConfig says what a [Guard] lends.
type GuardConfig struct {
	// Package is the store's name, which begins the errors.
	Package string

	// Begin begins the transaction, at the first use. Its error is the end of it.
	Begin func(ctx context.Context) (*Tx, error)

	// Explain is what the handler sees of the error of a statement.
	Explain func(err error) error
}

// Guard lends a transaction to a handler: the methods of sqlc's DBTX for
// database/sql, without Commit and Rollback. It keeps what the handler writes inside:
// nothing gets through once the handler has returned, or once the database has rolled back by
// itself, where the next statement would be committed on its own; and what the handler leaves
// open is closed. It is safe for concurrent use.
type Guard struct {
	b      *DB
	c      GuardConfig
	ctx    context.Context // ends when the handler has returned
	cancel context.CancelFunc

	mu       sync.Mutex // held during each call
	tx       *Tx        // nil before the first use
	ended    bool
	left     bool    // abandoned
	gone     error   // why there is no transaction
	prepared bool    // a statement was
	queried  bool    // rows were lent
	told     []error // of statements, as the database gave them, the last few
	stmts    []*sql.Stmt
}

// Guard lends a transaction until ctx ends or it is closed.
func (b *DB) Guard(ctx context.Context, c GuardConfig) *Guard {
	g := &Guard{b: b, c: c}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// Tx is, after Close, the transaction, or nil if it was not used.
func (g *Guard) Tx() *Tx { return g.tx }

// Context ends with the handler's use of g.
func (g *Guard) Context() context.Context { return g.ctx }

// Gone says why there is no transaction any more, after Close. It is nil where
// there is one, or never was.
func (g *Guard) Gone() error { return g.gone }

// Told reports, after Close, whether err is, or wraps, the error of a statement of
// this transaction's, as far as it is seen: the errors of rows that were lent, and
// of statements that were prepared, are not, and unseen tells that there may be such.
func (g *Guard) Told(err error) (told, unseen bool) {
	for _, e := range g.told {
		told = told || errors.Is(err, e)
	}
	return told, g.prepared || g.queried
}

// maxTold is how many are remembered.
const maxTold = 16

func (g *Guard) tell(err error) {
	if g.told = append(g.told, err); len(g.told) > maxTold {
		g.told = slices.Delete(g.told, 0, 1)
	}
}

// Prepared reports, after Close, whether a statement was prepared.
func (g *Guard) Prepared() bool { return g.prepared }

// ExecContext is [sql.Tx]'s, and so are the others.
func (g *Guard) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, conn, err := g.use(ctx)
	if err != nil {
		return nil, err
	}
	r, err := conn.ExecContext(ctx, query, args...)
	return r, g.judge(err)
}

// PrepareContext prepares a statement that [Guard.Close] closes.
func (g *Guard) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, conn, err := g.use(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, g.judge(err)
	}
	g.stmts, g.prepared = append(g.stmts, stmt), true
	return stmt, nil
}

// QueryContext returns rows that are closed once [Guard.Context] ends.
func (g *Guard) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, conn, err := g.use(ctx)
	if err != nil {
		return nil, err
	}
	g.queried = true
	rows, err := conn.QueryContext(ctx, query, args...)
	return rows, g.judge(err)
}

// QueryRowContext returns a row whose Scan says what was wrong.
func (g *Guard) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, conn, err := g.use(ctx)
	if err != nil {
		// A Row cannot be made with an error of our own, but it takes that of
		// its context.
		return g.b.db.QueryRowContext(failed{ctx, err}, query)
	}
	row := conn.QueryRowContext(ctx, query, args...)
	_ = g.judge(row.Err()) // Scan returns it
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
func (g *Guard) use(ctx context.Context) (context.Context, *sql.Conn, error) {
	switch {
	case g.left:
		return ctx, nil, fmt.Errorf("%s: %w", g.c.Package, epoch.ErrAbandoned)
	case g.ended:
		return ctx, nil, fmt.Errorf("%s: transaction used after its handler returned: %w", g.c.Package, sql.ErrTxDone)
	case g.gone != nil:
		return ctx, nil, fmt.Errorf("%s: there is no transaction any more: %w", g.c.Package, g.gone)
	}
	if err := ctx.Err(); err != nil {
		// Not left to the driver: what it has not run has not ended the
		// transaction, whatever judge would find.
		return ctx, nil, err
	}
	conn, err := g.conn()
	if err != nil {
		g.tell(err)
		g.gone = err // for good: a handler must not go on as if nothing was
		return ctx, nil, fmt.Errorf("%s: %w", g.c.Package, err)
	}
	if ctx == g.ctx {
		return ctx, conn, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(g.ctx, cancel)
	return ctx, conn, nil
}

// conn returns the connection that the transaction is open on. It begins the
// transaction if this is its first use, and otherwise looks whether it is still there, where
// an error may have gone unseen.
func (g *Guard) conn() (*sql.Conn, error) {
	if g.tx == nil {
		tx, err := g.c.Begin(g.ctx)
		if err != nil {
			return nil, err
		}
		g.tx = tx
		return tx.Conn, nil
	}
	if g.prepared {
		in, err := g.b.d.InTransaction(context.WithoutCancel(g.ctx), g.tx.Conn)
		if err != nil {
			return nil, err
		}
		if !in {
			return nil, errNoneOpen
		}
	}
	return g.tx.Conn, nil
}

// errNoneOpen is an escape: that the handler has not committed cannot be told.
var errNoneOpen = fmt.Errorf("%w: no transaction is open: either the handler has ended it, "+
	"or the database has, and the error of a prepared statement was ignored", epoch.ErrTxEndedByHandler)

// judge looks, after an error, whether the transaction is still there. If not,
// the handler's next statement would be committed at once.
func (g *Guard) judge(err error) error {
	if err == nil {
		return nil
	}
	g.tell(err)
	seen := g.c.Explain(err)
	in, probeErr := g.b.d.InTransaction(context.WithoutCancel(g.ctx), g.tx.Conn)
	if in && probeErr == nil {
		return seen
	}
	g.gone = seen
	if g.b.d.Classify(err) == Refused { // which leaves a transaction alone, but for ON CONFLICT ROLLBACK
		g.gone = fmt.Errorf("%w: %w", epoch.ErrTxEndedByHandler, seen)
	}
	return seen
}

// Abandon ends the transaction while the handler, which may never return, still has g. It
// waits for the call under way, which it cancels.
func (g *Guard) Abandon() {
	g.cancel()
	g.mu.Lock()
	g.left = true // for those that wait
	g.mu.Unlock()
	g.Close()
	if g.tx != nil {
		g.tx.End()
	}
}

// Abandoned reports whether Abandon was called.
func (g *Guard) Abandoned() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

// Close ends the handler's use of g. It may be called again.
func (g *Guard) Close() {
	g.cancel() // also ends a call that a goroutine of the handler's still makes
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for _, stmt := range g.stmts {
		_ = stmt.Close()
	}
	g.stmts = nil
}
