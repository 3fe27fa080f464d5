package pgsink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
)

// This file takes connections from the pool, replaces dead ones, and rolls back. It decides whether
// another server has answered than before, which may lack what was committed last.

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
	return sqlState(err) == codeNoStatement
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
	return s.each(ctx, again, epoch.TxOptions{}, func(conn *pgx.Conn) error {
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
func (s *Sink) each(ctx context.Context, again repeat, o epoch.TxOptions, f func(*pgx.Conn) error) error {
	for try := 1; ; try++ {
		conn, err := s.acquire(ctx)
		if err != nil {
			return unreachable{err}
		}
		lost := false
		err = func() error {
			l := lent{conn: conn}
			defer l.giveBack() // closes one that is still in a transaction, also after a panic
			defer o.AfterAbandoned(l.takeOut)()
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

// write sends one statement as a transaction of its own.
func (s *Sink) write(ctx context.Context, again repeat, sql string, args ...any) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.transact(ctx, again, func(b *pgx.Batch) { b.Queue(sql, args...) }, execOne)
	if err != nil {
		return ended(ctx, explain(err))
	}
	return nil
}

func execOne(r pgx.BatchResults) error {
	_, err := r.Exec()
	return err
}

// rollbackTimeout limits a rollback. After it the connection is closed, which has the same effect.
const rollbackTimeout = 2 * time.Second

// rollback ends the transaction xid, or any open transaction if xid is nil. It reports whether the
// handler had already left xid: there is no transaction, or another one, or xid was not aborted.
// rollback uses no parameters and no cache, so that it works in an aborted transaction and in every
// query mode, in one round trip.
func rollback(ctx context.Context, conn *pgx.Conn, xid *int64) (escaped bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	status := conn.PgConn().TxStatus()
	if status == noTransaction && xid == nil {
		return false
	}
	if xid == nil {
		_, _ = conn.PgConn().Exec(ctx, "rollback").ReadAll()
		return false
	}
	sql := "select pg_catalog.pg_xact_status(" + xid8(*xid) + ") <> 'aborted'"
	if status != noTransaction {
		sql = "rollback; " + sql
	}
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll() // if this fails, the connection is closed
	if err != nil && status == noTransaction {
		return true
	}
	for _, r := range results {
		escaped = escaped || len(r.Rows) == 1 && string(r.Rows[0][0]) == "t"
	}
	return escaped
}

// within reports whether conn is in transaction xid, or true without an answer: conn is then
// closed.
func within(conn *pgx.Conn, xid int64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	results, _ := conn.PgConn().Exec(ctx, leftSQL(xid)).ReadAll()
	return len(results) == 0 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "t"
}

func leftSQL(xid int64) string {
	return "select pg_catalog.pg_current_xact_id_if_assigned() is distinct from " + xid8(xid)
}

func xid8(xid int64) string { return "'" + strconv.FormatInt(xid, 10) + "'::pg_catalog.xid8" }

type server struct {
	logger *slog.Logger

	mu       sync.Mutex
	last     serverID
	followed serverID      // the server whose identities were found not to be behind their rows
	replaced chan struct{} // closed when the server is, or may be, another one
}

// serverID distinguishes servers, and the restarts of one server.
type serverID struct {
	system, timeline int64 // zero if the server does not tell
	started          time.Time
}

func (id *serverID) scan(row pgx.Row) error {
	return row.Scan(&id.system, &id.timeline, &id.started)
}

func (id serverID) equal(other serverID) bool {
	return id.system == other.system && id.timeline == other.timeline && id.started.Equal(other.started)
}

func newServer(l *slog.Logger) server {
	return server{logger: l, replaced: make(chan struct{})}
}

// Facts implements [epoch.Sink]. The channel Replaced is closed when a connection is lost, because the
// next one may lead to another server, and when another server answers, even behind a pooler that
// kept the connection. Transactions leaves half of the pool, and one more, to handlers, claims and what else the
// process does.
func (s *Sink) Facts() epoch.Facts {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return epoch.Facts{
		Guarantee: epoch.Transactional, Beside: true, Transactions: int(s.pool.Stat().MaxConns()/2) - 1, Replaced: s.server.replaced,
	}
}

func (v *server) lost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.signal()
}

func (v *server) answeredBy(ctx context.Context, now serverID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := v.last
	v.last = now
	if was == (serverID{}) || was.equal(now) {
		return
	}
	v.signal()
	if was.system == now.system && was.timeline == now.timeline {
		v.logger.InfoContext(ctx, "pgsink: the server was restarted", "started", now.started)
		return
	}
	v.logger.WarnContext(ctx, "pgsink: the server is another one than before, which may lack what was committed last; "+
		"looking at all fences", "was_system", was.system, "was_timeline", was.timeline, "system", now.system, "timeline", now.timeline)
}

// follows returns an error while an identity of the server is behind the rows of its table. Once a
// server has answered that none is, it is not asked again.
func (s *Sink) follows(ctx context.Context, conn *pgx.Conn, now serverID) error {
	v := &s.server
	v.mu.Lock()
	done := v.followed.equal(now)
	v.mu.Unlock()
	if done {
		return nil
	}
	var behind *string
	if err := conn.QueryRow(ctx, s.sql.behind).Scan(&behind); err != nil {
		return err
	}
	if behind != nil {
		return fmt.Errorf("%w: %s", epoch.ErrUnhealthy, *behind)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.followed = now
	return nil
}

func (v *server) signal() {
	close(v.replaced)
	v.replaced = make(chan struct{})
}
