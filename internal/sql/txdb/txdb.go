// Package txdb makes a [sql.DB] of a transaction that was lent to a handler, for ORMs and others
// that need one. The DB writes in the transaction. Its own transactions are savepoints.
package txdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/sqltext"
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

// Handle is what a statement was sent through: the message's own transaction, which is the zero
// value, a DB, or a savepoint with a Commit and a Rollback.
type Handle struct {
	Savepoint string // within which it is; empty outside any

	// DB is whether it is of package database/sql. There a DB and each Tx are independent of all
	// others. Those of pgx are one within the other, as savepoints are.
	DB bool
}

type handleKey struct{}

// Context returns a context for a statement that is sent through h.
func (h Handle) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, handleKey{}, h)
}

// HandleOf returns what a statement with this context was sent through.
func HandleOf(ctx context.Context) Handle {
	h, _ := ctx.Value(handleKey{}).(Handle)
	return h
}

// Savepoints are the savepoints that one message has set through any handles with a Commit and a
// Rollback. The zero value is empty. All calls need the lock of the message's transaction.
//
// A handle decides only about its own message. If a handle was left open, or could not be ended as
// its user asked, the whole message is rolled back.
type Savepoints struct {
	open   []savepoint // the outermost first
	failed error
	why    error // why one of them could not be ended

	text  Handle // a Tx of database/sql through which a text has set a savepoint; zero if there is none
	mixed bool   // another handle has written since
}

type savepoint struct {
	Handle
	wrote  bool     // through itself, or through one that was committed within it
	others bool     // what others wrote for good would be lost with it
	outer  []string // the savepoints around it that wrote since it was set
	lost   bool     // some of what it wrote was lost with one within it
}

var (
	// ErrLeft is returned if a message has left a handle open.
	ErrLeft = errors.New("a transaction begun by Begin was neither committed nor rolled back when the handler returned: " +
		"call its Commit or Rollback, and leave it to no context")

	// ErrShared is returned if the end of a handle would end another one, or take its writes back.
	ErrShared = errors.New("the end of a transaction begun by Begin would decide what others wrote: all handles of a message have one connection, " +
		"so write through the Tx that was begun last, and end it first")
)

// Name returns a name for a savepoint that nobody can guess.
func Name() string { return "epochfence_" + strings.ToLower(rand.Text()) }

// Begin sets the savepoint of h.
func (s *Savepoints) Begin(h Handle, send func(text string) error) error {
	if err := send("SAVEPOINT " + h.Savepoint); err != nil {
		return err
	}
	s.open = append(s.open, savepoint{Handle: h})
	return nil
}

// Commit ends a savepoint. It returns [sql.ErrTxDone] if the savepoint has ended with an outer one.
func (s *Savepoints) Commit(h Handle, send func(text string) error) error {
	i, err := s.index(h.Savepoint)
	if err != nil {
		return err
	}
	p := s.open[i]
	if p.lost || slices.ContainsFunc(s.open[i+1:], func(q savepoint) bool { return p.DB || q.DB }) {
		return s.Fail(ErrShared)
	}
	if err := send("RELEASE SAVEPOINT " + h.Savepoint); err != nil {
		s.why = err
		return err
	}
	for j := range s.open[:i] {
		if q := &s.open[j]; p.DB || q.DB {
			q.others = q.others || p.wrote
		} else {
			q.wrote = q.wrote || p.wrote
		}
	}
	s.end(i)
	return nil
}

// Rollback goes back to a savepoint and ends it. Its errors are those of Commit.
func (s *Savepoints) Rollback(h Handle, send func(text string) error) error {
	i, err := s.index(h.Savepoint)
	if err != nil {
		return err
	}
	p := s.open[i]
	if p.others || slices.ContainsFunc(s.open[i+1:], func(q savepoint) bool { return q.wrote && (p.DB || q.DB) }) {
		return s.Fail(ErrShared)
	}
	if err := send("ROLLBACK TO SAVEPOINT " + h.Savepoint + "; RELEASE SAVEPOINT " + h.Savepoint); err != nil {
		s.why = err
		return err
	}
	for j := range s.open[:i] {
		q := &s.open[j]
		q.lost = q.lost || slices.Contains(p.outer, q.Savepoint)
	}
	s.end(i)
	return nil
}

func (s *Savepoints) end(i int) {
	if slices.ContainsFunc(s.open[i:], func(p savepoint) bool { return p.Handle == s.text }) {
		s.text, s.mixed = Handle{}, false
	}
	s.open = s.open[:i]
}

// Reset forgets all savepoints, because everything was rolled back.
func (s *Savepoints) Reset() { *s = Savepoints{failed: s.failed} }

func (s *Savepoints) index(name string) (int, error) {
	i := slices.IndexFunc(s.open, func(p savepoint) bool { return p.Savepoint == name })
	if i < 0 {
		return 0, sql.ErrTxDone
	}
	return i, nil
}

// Use returns [sql.ErrTxDone] unless the savepoint of h is open.
func (s *Savepoints) Use(h Handle) error {
	if h.Savepoint == "" {
		return nil
	}
	_, err := s.index(h.Savepoint)
	return err
}

// Sends must be called before a text is sent, and did once it was executed.
func (s *Savepoints) Sends(h Handle, text string, d sqltext.Dialect) (did func(), err error) {
	if len(s.open) == 0 {
		return func() {}, nil
	}
	touch := sqltext.TouchOf(text, d)
	if touch.Back && s.mixed {
		return nil, s.Fail(ErrShared)
	}
	return func() {
		if touch.Sets && s.text.Savepoint == "" && h.DB {
			s.text = h
		}
		if !touch.Reads {
			s.Wrote(h)
		}
	}, nil
}

// Wrote notes a write through h.
func (s *Savepoints) Wrote(h Handle) {
	within := 0 // the first savepoint that was set since that of h
	if i, err := s.index(h.Savepoint); err == nil {
		s.open[i].wrote = true
		within = i + 1
	}
	for i := within; i < len(s.open); i++ {
		p := &s.open[i]
		switch {
		case !p.DB && !h.DB: // as in pgx
		case within == 0:
			p.others = true
		case !slices.Contains(p.outer, h.Savepoint):
			p.outer = append(p.outer, h.Savepoint)
		}
	}
	s.mixed = s.mixed || s.text.Savepoint != "" && s.text != h
}

// Fail keeps the message from being committed, and returns why. The first reason counts.
func (s *Savepoints) Fail(why error) error {
	if s.failed == nil {
		s.failed = why
	}
	return why
}

// Open reports whether a savepoint has not ended.
func (s *Savepoints) Open() bool { return len(s.open) > 0 }

// Failed returns why the message cannot be committed any more, so that the rest of it need not run.
func (s *Savepoints) Failed() error { return s.failed }

// Err returns why the message cannot be committed. It is for when the handler has returned and
// nothing more is sent.
func (s *Savepoints) Err() error {
	switch {
	case s.failed != nil || len(s.open) == 0:
		return s.failed
	case s.why != nil:
		return fmt.Errorf("%w; it, or another one, could not be ended: %w", ErrLeft, s.why)
	}
	return ErrLeft
}
