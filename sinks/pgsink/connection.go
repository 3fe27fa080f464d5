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
	"github.com/epochfence/epochfence/internal/sql/pgschema"
)

// A connection of a pool may be dead before it is used: the server restarted, or a claim ended the
// connection just after its transaction. So a transaction that was not executed is tried again on
// another connection.

const staleTries = 10

type repeat bool

const (
	harmless repeat = true
	harmful  repeat = false
)

// unexecuted marks an error after which nothing was executed, and unreachable an error of getting a
// connection. Both count only as the outermost error.
type (
	unexecuted  struct{ error }
	unreachable struct{ error }
)

func (e unexecuted) Unwrap() error  { return e.error }
func (e unreachable) Unwrap() error { return e.error }

// queryMode caches the query mode, because pgx copies its whole configuration to answer.
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

// queueTexts makes the answers that follow in a transaction of ours readable, if they come as text.
// The function that it returns reads the answer to it.
func queueTexts(conn *pgx.Conn, b *pgx.Batch) func(pgx.BatchResults) error {
	switch queryMode(conn) {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		b.Queue(pgschema.Texts)
		return execOne
	}
	return func(pgx.BatchResults) error { return nil }
}

// vanished reports whether the server no longer has a prepared statement of pgx's cache.
func vanished(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeNoStatement
}

// closeNow closes a connection without telling the server.
func closeNow(conn *pgx.Conn) {
	_ = conn.PgConn().Conn().Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx)
}

// on is each for an f that sends only the sink's own statements. If a prepared one has vanished, f
// runs again on another connection.
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

// each runs f on a connection. It runs f again on another one if the connection was lost before it
// executed anything or, if a repetition is harmless, whenever it was lost.
func (s *Sink) each(ctx context.Context, again repeat, f func(*pgx.Conn) error) error {
	for try := 1; ; try++ {
		conn, err := s.acquire(ctx)
		if err != nil {
			return unreachable{err}
		}
		lost := false
		err = func() error {
			l := lent{conn: conn}
			defer l.giveBack() // closes one that is still in a transaction, also after a panic
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

// lent is a connection of the pool. Its user may never return, so takeOut lets the pool open
// another one.
type lent struct {
	mu   sync.Mutex
	conn *pgxpool.Conn // nil once it was given back or taken out
	out  *pgx.Conn
}

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

func (s *Sink) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, ended(ctx, fmt.Errorf("get a connection: %w", faultless(pgschema.Explain(err))))
	}
	return conn, nil
}

// neverRan reports whether err, of the first statement sent, means that the server executed
// nothing: pgx could not send it, or the server answered it with the end of the connection.
func neverRan(err error) bool { return pgconn.SafeToRetry(err) || fatal(err) }

// transact sends statements as a READ COMMITTED transaction of their own, in one round trip.
func (s *Sink) transact(ctx context.Context, again repeat, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.on(ctx, again, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue("begin isolation level read committed")
		texts := queueTexts(conn, b)
		queue(b)
		b.Queue("commit")
		r := conn.SendBatch(ctx, b)
		_, err := r.Exec()
		switch {
		case err == nil:
			if err = texts(r); err == nil {
				err = read(r)
			}
			if err == nil {
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
