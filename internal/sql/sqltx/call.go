package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file decides who may use the transaction: one statement at a time, while the handler's call
// lasts, and nothing after a refused text. effect.go decides which texts are refused, and guard.go
// what an error means for the calls that follow.

// Call lends a transaction to one call of a handler. It has the methods of sqlc's DBTX for
// database/sql. Once the handler has returned, it refuses everything, and so do rows, prepared
// statements and transactions of [Call.OpenDB] that came from it. It is safe for concurrent use.
type Call struct {
	g      *Guard
	ctx    context.Context // ends when the handler has returned
	cancel context.CancelFunc

	// Under the lock of the Guard.
	ended  bool
	refuse error // why everything is refused: a statement that was not sent
	rows   map[*callRows]struct{}
	stmts  map[string]*sql.Stmt // by their text
	dbs    []*sql.DB
	front  *sql.DB // makes our rows and statements; nil before the first

	savepoints txdb.Savepoints
	left       error // what savepoints.Err was when c was closed
}

// Call lends the transaction to the next call, until ctx ends or the Call is closed.
func (g *Guard) Call(ctx context.Context) *Call {
	c := &Call{g: g}
	c.ctx, c.cancel = context.WithCancel(ctx)
	g.call.Store(c)
	return c
}

// Context ends with the handler's use of c.
func (c *Call) Context() context.Context { return c.ctx }

// ExecContext runs a statement. See [sql.Tx.ExecContext].
func (c *Call) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.g.mu.unlock()
	var r sql.Result
	err := c.send(ctx, query, func(ctx context.Context) (err error) {
		if stmt := c.prepared(query); stmt != nil { //nolint:sqlclosecheck // Close does
			r, err = stmt.ExecContext(ctx, args...)
		} else {
			r, err = c.g.tx.Conn.ExecContext(ctx, query, args...)
		}
		return err
	})
	return r, err
}

// prepared returns the statement that was prepared from query, unless it is in use: a driver's
// statement has one set of rows at a time.
func (c *Call) prepared(query string) *sql.Stmt {
	for r := range c.rows {
		if r.text == query {
			return nil
		}
	}
	return c.stmts[query]
}

// PrepareContext prepares a statement. Each use of it is a use of c.
func (c *Call) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	db, err := c.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return db.PrepareContext(ctx, query)
}

func (c *Call) prepare(ctx context.Context, query string) (*sql.DB, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.g.mu.unlock()
	err := c.send(ctx, query, func(ctx context.Context) error {
		if c.stmts[query] != nil {
			return nil
		}
		stmt, err := c.g.tx.Conn.PrepareContext(ctx, query) //nolint:sqlclosecheck // Close does
		if err != nil {
			return err
		}
		if c.stmts == nil {
			c.stmts = map[string]*sql.Stmt{}
		}
		c.stmts[query] = stmt
		return nil
	})
	return c.ours(), err
}

// QueryContext returns rows, which are closed with c.
func (c *Call) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	db, err := c.querying(ctx)
	if err != nil {
		return nil, err
	}
	return db.QueryContext(ctx, query, args...)
}

// QueryRowContext returns a row. Its Scan returns any error.
func (c *Call) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	db, err := c.querying(ctx)
	if err != nil {
		// A Row cannot be made with an error of our own, but it returns the error of its context.
		return c.g.b.db.QueryRowContext(failed{ctx, err}, query)
	}
	return db.QueryRowContext(ctx, query, args...)
}

type failed struct {
	context.Context
	err error
}

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (f failed) Done() <-chan struct{} { return ended }
func (f failed) Err() error            { return f.err }

// OpenDB returns a DB whose connections are all c. It is closed with c.
func (c *Call) OpenDB() *sql.DB {
	db := c.open()
	if c.lock(c.ctx) != nil {
		return db // which refuses everything
	}
	defer c.g.mu.unlock()
	if c.ended && !c.g.Abandoned() {
		_ = db.Close()
	}
	c.dbs = append(c.dbs, db)
	return db
}

func (c *Call) open() *sql.DB { return txdb.Open(throughDB{c}) }

func (c *Call) querying(ctx context.Context) (*sql.DB, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.g.mu.unlock()
	if err := c.usable(); err != nil {
		return nil, err
	}
	return c.ours(), nil
}

func (c *Call) ours() *sql.DB {
	if c.front == nil {
		c.front = c.open()
		c.dbs = append(c.dbs, c.front)
	}
	return c.front
}

// lock waits for the connection. What waits for it within a statement, such as the method of an
// argument, waits for itself, until ctx or the handler's context ends.
func (c *Call) lock(ctx context.Context) error {
	if c.g.mu.tryLock() {
		return nil
	}
	var why error
	select {
	case c.g.mu <- struct{}{}:
		return nil
	case <-c.ctx.Done():
		why = sql.ErrTxDone
	case <-ctx.Done():
		why = ctx.Err()
	}
	if c.g.Abandoned() {
		why = epoch.ErrAbandoned
	}
	return fmt.Errorf("%s: conn busy: the transaction was in use all the time, perhaps by what this was called in: %w", c.g.c.Package, why)
}

func (c *Call) usable() error {
	switch {
	case c.g.Abandoned():
		return fmt.Errorf("%s: %w", c.g.c.Package, epoch.ErrAbandoned)
	case c.ended:
		return fmt.Errorf("%s: transaction used after its handler returned: %w", c.g.c.Package, sql.ErrTxDone)
	case c.refuse != nil:
		return fmt.Errorf("%s: %w", c.g.c.Package, c.refuse)
	case c.g.gone != nil:
		return fmt.Errorf("%s: there is no transaction any more: %w", c.g.c.Package, c.g.gone)
	}
	if err := c.savepoints.Failed(); err != nil {
		return fmt.Errorf("%s: %w", c.g.c.Package, err)
	}
	return nil
}

func (c *Call) send(ctx context.Context, text string, run func(ctx context.Context) error) error {
	if err := c.usable(); err != nil {
		return err
	}
	effect := c.g.effect(text)
	if err := effect.refusal(text, c.g.c.Alone); err != nil {
		c.refuse = err
		return fmt.Errorf("%s: %w", c.g.c.Package, err)
	}
	if c.g.c.Stop != nil {
		if err := c.g.c.Stop(); err != nil {
			return err
		}
	}
	h := txdb.HandleOf(ctx)
	if err := c.savepoints.Use(h); err != nil {
		return err
	}
	did, err := c.savepoints.Sends(h, text, c.g.b.d.Words())
	if err != nil {
		return fmt.Errorf("%s: %w", c.g.c.Package, err)
	}
	return c.run(ctx, text, func(ctx context.Context) (err error) {
		defer func() {
			if err == nil {
				did()
			}
		}()
		tx := c.g.tx
		if effect.has(Lasting) {
			tx.spoil(text)
		}
		if !effect.has(Unsure) {
			return run(ctx)
		}
		savepoint := txdb.Name()
		if _, err := tx.Conn.ExecContext(ctx, `SAVEPOINT `+savepoint); err != nil {
			return err
		}
		defer c.g.prove(savepoint, text)
		return run(ctx)
	})
}

// run calls do in the transaction, which it begins if needed. The context of do ends with the
// handler, whatever ctx is.
func (c *Call) run(ctx context.Context, text string, do func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		// The driver must not see an ended context: a statement that it has not run has not ended
		// the transaction, whatever judge would find.
		return err
	}
	if err := c.g.begun(c.ctx); err != nil {
		return err
	}
	if ctx != c.ctx {
		within, cancel := context.WithCancel(ctx)
		context.AfterFunc(c.ctx, cancel)
		ctx = within
	}
	return c.g.judge(text, do(ctx))
}

// Refused returns the error of a statement that was not sent. The call fails with it, whatever the
// handler returns. It is for after Close.
func (c *Call) Refused() error { return c.refuse }

// Left returns why nothing of the call may be committed although its statements succeeded: a
// transaction of [Call.OpenDB] was not ended. It is for after Close.
func (c *Call) Left() error { return c.left }

// Close ends the handler's use of c. It may be called again.
func (c *Call) Close() { c.close(true) }

// close is Close if the handler has returned. If not, c is abandoned: the databases of
// [Call.OpenDB] stay open, to say why they refuse.
func (c *Call) close(returned bool) {
	if !c.g.mu.tryLock() {
		c.cancel() // a goroutine of the handler's runs a statement
		c.g.mu.lock()
	}
	defer c.g.mu.unlock()
	if !c.ended {
		c.end()
	}
	if returned {
		for _, db := range c.dbs {
			_ = db.Close()
		}
		c.dbs = nil
	}
}

func (c *Call) end() {
	// Close what is open before the context ends: a driver that sees the context end while rows are
	// open may interrupt the statements of the next user.
	c.ended = true
	for r := range c.rows {
		_ = r.close()
	}
	for _, stmt := range c.stmts {
		_ = stmt.Close()
	}
	c.stmts = nil
	c.left = c.savepoints.Err()
	c.cancel()
}

type throughDB struct{ *Call }

func (c throughDB) Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.ExecContext(ctx, query, values(args)...)
}

func (c throughDB) Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.g.mu.unlock()
	r := &callRows{c: c.Call, text: query}
	err := c.send(ctx, query, func(ctx context.Context) (err error) {
		if stmt := c.prepared(query); stmt != nil { //nolint:sqlclosecheck // Close does
			r.inner, err = stmt.QueryContext(ctx, values(args)...) //nolint:rowserrcheck // callRows does
		} else {
			r.inner, err = c.g.tx.Conn.QueryContext(ctx, query, values(args)...) //nolint:rowserrcheck // callRows does
		}
		if err != nil {
			return err
		}
		return r.open()
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (c throughDB) Begin(ctx context.Context, h txdb.Handle) error {
	return c.own(ctx, c.savepoints.Begin, h)
}

func (c throughDB) Commit(h txdb.Handle) error {
	return c.own(c.ctx, c.savepoints.Commit, h)
}

func (c throughDB) Rollback(h txdb.Handle) error {
	return c.own(c.ctx, c.savepoints.Rollback, h)
}

// own runs a statement about a savepoint, which the handler did not send as text.
func (c throughDB) own(ctx context.Context, do func(h txdb.Handle, send func(text string) error) error, h txdb.Handle) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.g.mu.unlock()
	if err := c.usable(); err != nil {
		return err
	}
	return do(h, func(text string) error {
		return c.run(ctx, text, func(ctx context.Context) error { return c.g.tx.exec(ctx, text) })
	})
}

func values(args []driver.NamedValue) []any {
	vs := make([]any, len(args))
	for i, a := range args {
		vs[i] = a.Value
		if a.Name != "" {
			vs[i] = sql.Named(a.Name, a.Value)
		}
	}
	return vs
}
