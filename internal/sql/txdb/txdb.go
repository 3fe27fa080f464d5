// Package txdb makes a [sql.DB] of a transaction that was lent to a handler, for ORMs and others
// that need one. The DB writes in the transaction. Its own transactions are savepoints.
package txdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// Tx is the transaction of one message. It keeps the [Savepoints] of the message: it asks them
// before a statement, and when the handler has returned.
type Tx interface {
	// Exec and Query run a statement. Its context has the [Handle] that it was sent through.
	Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error)
	Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error)

	// Begin, Commit and Rollback are those of a savepoint. Like statements, they are refused once
	// the message is over.
	Begin(ctx context.Context, h Handle) error
	Commit(h Handle) error
	Rollback(h Handle) error
}

// Open returns a DB whose connections are all tx. Arguments go to tx as they are. Begin sets a
// savepoint.
func Open(tx Tx) *sql.DB { return sql.OpenDB(connector{tx}) }

type connector struct{ tx Tx }

func (c connector) Connect(context.Context) (driver.Conn, error) { return &conn{tx: c.tx}, nil }
func (c connector) Driver() driver.Driver                        { return fenced{} }

type fenced struct{}

func (fenced) Open(string) (driver.Conn, error) {
	return nil, errors.New("a handler's transaction cannot be opened again")
}

type conn struct {
	tx     Tx
	within string // the savepoint; empty outside one
}

func (c *conn) handle() Handle { return Handle{Savepoint: c.within, DB: true} }

func (c *conn) Close() error                              { return nil }
func (c *conn) CheckNamedValue(*driver.NamedValue) error  { return nil }
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.tx.Exec(c.handle().Context(ctx), query, args)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.tx.Query(c.handle().Context(ctx), query, args)
}

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly || sql.IsolationLevel(o.Isolation) != sql.LevelDefault {
		return nil, fmt.Errorf("begin within a handler's transaction: %w: it is a savepoint, which has neither an isolation level nor an access mode of its own", errors.ErrUnsupported)
	}
	h := Handle{Savepoint: Name(), DB: true}
	if err := c.tx.Begin(ctx, h); err != nil {
		return nil, err // if it is set, nobody will use it
	}
	c.within = h.Savepoint
	return &dbTx{c: c, h: h, ctx: ctx}, nil
}

// stmt is not prepared. The transaction prepares it if that is useful.
type stmt struct {
	c     *conn
	query string
}

func (s *stmt) Close() error  { return nil }
func (s *stmt) NumInput() int { return -1 } // not known

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.ExecContext(ctx, s.query, args)
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.QueryContext(ctx, s.query, args)
}

func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), numbered(args))
}

func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), numbered(args))
}

func numbered(args []driver.Value) []driver.NamedValue {
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return named
}

type dbTx struct {
	c   *conn
	h   Handle
	ctx context.Context // of BeginTx; database/sql rolls back when it ends
}

func (t *dbTx) Commit() error {
	t.c.within = ""
	return t.c.tx.Commit(t.h)
}

// Rollback undoes nothing once the context has ended. Then database/sql calls it from another
// goroutine, and others may have written since. The savepoint is left open, so the message fails.
func (t *dbTx) Rollback() error {
	t.c.within = ""
	if t.ctx.Err() != nil {
		return ErrLeft
	}
	return t.c.tx.Rollback(t.h)
}
