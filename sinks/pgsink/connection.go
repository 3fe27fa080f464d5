package pgsink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/pgschema"
)

// A connection of a pool may be dead before it is used: the server restarted,
// or a claim ended it just after its transaction. So what was not executed is
// tried on another one.

// staleTries bounds how many connections are tried.
const staleTries = 10

// repeat says what it would mean to run something twice.
type repeat bool

const (
	harmless repeat = true
	harmful  repeat = false
)

// unexecuted marks an error, outermost, after which nothing was executed, and
// unreachable one of a connection that could not be had.
type (
	unexecuted  struct{ error }
	unreachable struct{ error }
)

func (e unexecuted) Unwrap() error  { return e.error }
func (e unreachable) Unwrap() error { return e.error }

// queryMode is the query mode of a connection. It is asked for in each transaction, and
// pgx copies the whole configuration to tell.
func queryMode(conn *pgx.Conn) pgx.QueryExecMode {
	const name = "epochfence: query mode"
	kept := conn.PgConn().CustomData()
	mode, is := kept[name].(pgx.QueryExecMode)
	if !is {
		mode = conn.Config().DefaultQueryExecMode
		kept[name] = mode
	}
	return mode
}

// vanished reports whether err is that a prepared statement, which pgx has in its
// cache, is not there any more.
func vanished(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeNoStatement
}

// closeNow closes a connection without a word to the server.
func closeNow(conn *pgx.Conn) {
	_ = conn.PgConn().Conn().Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx)
}

// on is each for f that sends none but the sink's own statements: if they are
// not there any more, they will be on another connection.
func (s *Sink) on(ctx context.Context, again repeat, f func(*pgx.Conn) error) error {
	return s.each(ctx, again, func(conn *pgx.Conn) error {
		err := f(conn)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && outlives(pg) {
			closeNow(conn)
		}
		if vanished(err) {
			return unexecuted{err}
		}
		return err
	})
}

// each runs f on a connection, and on another one if that was lost before it
// executed anything, or whenever it was lost if a repetition is harmless.
func (s *Sink) each(ctx context.Context, again repeat, f func(*pgx.Conn) error) error {
	for try := 1; ; try++ {
		conn, err := s.acquire(ctx)
		if err != nil {
			return unreachable{err}
		}
		lost := false
		err = func() error {
			l := lent{conn: conn}
			defer l.giveBack() // ends one that is still in a transaction, after a panic too
			defer epoch.AfterAbandoned(ctx, l.takeOut)()
			conn := conn.Conn()
			err := f(conn)
			if lost = err != nil && conn.IsClosed(); lost {
				s.server.lost()
			}
			return err
		}()
		mark, nothing := err.(unexecuted) //nolint:errorlint // outermost only: an error of the handler may hold one
		if nothing {
			err = mark.error
		}
		if !lost || !nothing && again == harmful || ctx.Err() != nil || try == staleTries {
			return err
		}
	}
}

// lent is a connection of the pool's. Whoever uses it may never return, and the pool is to
// have room for another one then.
type lent struct {
	mu   sync.Mutex
	conn *pgxpool.Conn // nil once it was given back or taken out
	out  *pgx.Conn     // that was taken out
}

// takeOut takes the connection out of the pool, as what uses it is abandoned.
func (l *lent) takeOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.out, l.conn = l.conn.Hijack(), nil
	}
}

func (l *lent) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out != nil {
		closeNow(l.out)
		return
	}
	l.conn.Release()
	l.conn = nil
}

// acquire takes a connection from the pool.
func (s *Sink) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, ended(ctx, fmt.Errorf("get a connection: %w", faultless(pgschema.Explain(err))))
	}
	return conn, nil
}

// neverRan reports whether err, of the first statement sent, means that the
// server executed none: pgx could not send it, or the server answered it with
// the end of the connection.
func neverRan(err error) bool { return pgconn.SafeToRetry(err) || fatal(err) }

// transact sends one statement as a READ COMMITTED transaction of its own, in
// one round trip.
func (s *Sink) transact(ctx context.Context, again repeat, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.on(ctx, again, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue("begin isolation level read committed")
		queue(b)
		b.Queue("commit")
		r := conn.SendBatch(ctx, b)
		_, err := r.Exec()
		switch {
		case err == nil:
			if err = read(r); err == nil {
				_, err = r.Exec()
			}
		case neverRan(err):
			err = unexecuted{err}
		}
		_ = r.Close()
		if err != nil && !conn.IsClosed() {
			rollback(ctx, conn, nil)
		}
		return err
	})
}
