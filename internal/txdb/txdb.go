// Package txdb makes a [sql.DB] of a transaction that a handler was lent, for ORMs and
// others that take nothing less. What such a DB writes is in the transaction; its own
// transactions are savepoints.
package txdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
)

// Tx is the transaction.
type Tx interface {
	Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error)
	Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error)
}

// Open returns a DB whose connections all are tx. Arguments go to tx as they are.
func Open(tx Tx) *sql.DB { return sql.OpenDB(&connector{tx: tx}) }

type connector struct {
	tx         Tx
	savepoints atomic.Int64 // how many have been set
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return &conn{c}, nil }
func (c *connector) Driver() driver.Driver                        { return fenced{} }

// fenced is a driver by which nothing can be opened.
type fenced struct{}

func (fenced) Open(string) (driver.Conn, error) {
	return nil, errors.New("a handler's transaction cannot be opened again")
}

// conn is a view of the transaction.
type conn struct{ *connector }

func (c *conn) Close() error                              { return nil }
func (c *conn) CheckNamedValue(*driver.NamedValue) error  { return nil }
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.tx.Exec(ctx, query, args)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.tx.Query(ctx, query, args)
}

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx sets a savepoint.
func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly || sql.IsolationLevel(o.Isolation) != sql.LevelDefault {
		return nil, fmt.Errorf("begin within a handler's transaction: %w: it is a savepoint, which has neither an isolation level nor an access mode of its own", errors.ErrUnsupported)
	}
	s := &savepoint{c, "epochfence_" + strconv.FormatInt(c.savepoints.Add(1), 10)}
	if err := s.exec(ctx, "SAVEPOINT "); err != nil {
		return nil, err
	}
	return s, nil
}

// stmt is a statement that is not prepared: the transaction does that if it is any use.
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

// savepoint is a transaction within the transaction.
type savepoint struct {
	c    *conn
	name string
}

func (s *savepoint) exec(ctx context.Context, what string) error {
	_, err := s.c.tx.Exec(ctx, what+s.name, nil)
	return err
}

func (s *savepoint) Commit() error { return s.exec(context.Background(), "RELEASE SAVEPOINT ") }

func (s *savepoint) Rollback() error {
	return errors.Join(s.exec(context.Background(), "ROLLBACK TO SAVEPOINT "), s.Commit())
}
