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

// Tx is the transaction of one message.
type Tx interface {
	Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error)
	Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error)

	// Savepoint sets a savepoint, Release ends it, and RollbackTo undoes the writes since and ends
	// it too. Like other statements, they are refused once the message is over.
	Savepoint(ctx context.Context, name string) error
	Release(name string) error
	RollbackTo(name string) error
}

// Open returns a DB whose connections are all tx. Arguments go to tx as they are. Begin sets a
// savepoint and adds it to s, the Savepoints of the message: tx must check [Savepoints.Failed]
// before a statement, and [Savepoints.Err] when the handler has returned.
func Open(tx Tx, s *Savepoints) *sql.DB { return sql.OpenDB(&connector{tx: tx, savepoints: s}) }

type connector struct {
	tx         Tx
	savepoints *Savepoints
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return &conn{connector: c}, nil }
func (c *connector) Driver() driver.Driver                        { return fenced{} }

type fenced struct{}

func (fenced) Open(string) (driver.Conn, error) {
	return nil, errors.New("a handler's transaction cannot be opened again")
}

type conn struct {
	*connector
	within *savepoint // nil outside one
}

func (c *conn) Close() error                              { return nil }
func (c *conn) CheckNamedValue(*driver.NamedValue) error  { return nil }
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.use(); err != nil {
		return nil, err
	}
	return c.tx.Exec(ctx, query, args)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.use(); err != nil {
		return nil, err
	}
	return c.tx.Query(ctx, query, args)
}

// use returns an error if the savepoint of c has ended with an outer one.
func (c *conn) use() error {
	if c.within == nil {
		return nil
	}
	return c.savepoints.Use(c.within.name)
}

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly || sql.IsolationLevel(o.Isolation) != sql.LevelDefault {
		return nil, fmt.Errorf("begin within a handler's transaction: %w: it is a savepoint, which has neither an isolation level nor an access mode of its own", errors.ErrUnsupported)
	}
	s := &savepoint{c: c, name: c.savepoints.Open(), ctx: ctx}
	if err := c.tx.Savepoint(ctx, s.name); err != nil {
		c.savepoints.End(s.name) // if it is set, nobody will use it
		return nil, err
	}
	c.within = s
	return s, nil
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

type savepoint struct {
	c    *conn
	name string
	ctx  context.Context // of BeginTx; database/sql rolls back when it ends
}

func (s *savepoint) Commit() error { return s.end(s.c.tx.Release) }

// Rollback undoes nothing once the context has ended. Then database/sql calls it from another
// goroutine, and others may have written since.
func (s *savepoint) Rollback() error {
	if s.ctx.Err() != nil {
		s.c.savepoints.Fail(ErrLate)
		return ErrLate
	}
	return s.end(s.c.tx.RollbackTo)
}

func (s *savepoint) end(how func(name string) error) error {
	s.c.within = nil
	if err := s.c.savepoints.Use(s.name); err != nil {
		return err
	}
	if err := how(s.name); err != nil {
		s.c.savepoints.Fail(fmt.Errorf("a transaction begun by Begin could not be ended: %w", err))
		return err
	}
	s.c.savepoints.End(s.name)
	return nil
}
