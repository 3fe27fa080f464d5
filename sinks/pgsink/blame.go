package pgsink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file decides what a failed call says about its message (L2), by the errors that the handler
// was given, and by whether a transaction that ran out of time was waiting for locks. errors.go
// decides about a single error.

// judge returns why the work of a call that returned err cannot be committed, or nil.
func (t *handlerTx) judge(err error) error {
	switch {
	case t.unbegun != nil: // whatever the handler returned
		return t.unbegun
	case t.refused == nil && err == nil && t.savepoints.Err() != nil:
		t.refused = t.savepoints.Err()
	case t.refused == nil && t.undone && t.sent && err == nil && !t.fenced.alone:
		t.refused = fmt.Errorf("%w: what the handler wrote is to be undone, and what others wrote is not", epoch.ErrOwnTransaction)
	}
	switch {
	case t.refused != nil && err != nil && !errors.Is(err, t.refused):
		return &epoch.CallError{Call: t.call, Err: fmt.Errorf("%w; the handler returned: %w", t.refused, err)}
	case t.refused != nil:
		return &epoch.CallError{Call: t.call, Err: t.refused}
	case t.left:
		return &epoch.CallError{Call: t.call, Err: t.why(err)}
	case err != nil || !t.ready():
		return t.blame(err)
	}
	return nil
}

// blame returns why the handler's work cannot be committed. It marks an error of this transaction
// that is no message's fault. The handler classifies the errors of other databases.
func (t *handlerTx) blame(err error) error { return mark(t.why(err), t.excuse(err)) }

// excuse returns what the database error behind err means, if this transaction raised it: the error
// that err wraps, or else the error that aborted the transaction.
func (t *handlerTx) excuse(err error) error {
	for _, f := range t.blameless {
		if tells(err, f.err) {
			return f.as
		}
	}
	if pg := t.conn.PgConn(); !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() == abortedTransaction {
		return t.last.as
	}
	return nil
}

func tells(err error, e *pgconn.PgError) bool { return errors.Is(err, e) }

func (t *handlerTx) why(err error) error {
	pg := t.conn.PgConn()
	switch {
	case t.leaked.Load():
		return errors.Join(errLeaked, err)
	case t.left && err != nil:
		return fmt.Errorf("%w; then: %w", errLeft, err)
	case t.left:
		return errLeft
	case pg.IsClosed() && err == nil && t.broke != nil:
		return fmt.Errorf("the handler returned nil although its connection was lost: %w", t.broke)
	case pg.IsClosed() || err != nil:
		return err
	case pg.IsBusy():
		return errOpen
	case pg.TxStatus() == noTransaction:
		return errLeft
	case t.failed != nil:
		return fmt.Errorf("the handler returned nil although a statement had failed, which aborts the transaction: %w", t.failed)
	default:
		return errors.New("the handler returned nil although a statement had failed, which aborts the transaction")
	}
}

// note notes what was done with the connection, if the call has it.
func (t *handlerTx) note(err error) {
	if t.fenced.turn == nil || t.has {
		t.noteOwn(err)
	}
}

// noteOwn notes an error of the call's own.
func (t *handlerTx) noteOwn(err error) {
	t.follow()
	if err == nil {
		return
	}
	if t.broke == nil && t.conn.IsClosed() {
		t.broke = inert.Error(err)
		t.fails()
	}
	pg, is := inert.As[*pgconn.PgError](err) // an argument's method may have returned it
	if !is {
		return
	}
	if t.failed == nil {
		t.failed = err
	}
	f := fault{pg, refusedHandlers(pg)}
	if t.ours {
		f.as = refusedOurs(pg)
	}
	if pg.Code != codeAborted {
		t.last = f
		t.fails()
	}
	if f.as != nil {
		t.blameless = append(t.blameless[max(0, len(t.blameless)-maxBlameless):], f)
	}
	if outlives(pg) {
		t.fenced.spoilt = true
	}
}

// fails blames the call for the transaction, unless it may go back to a savepoint.
func (t *handlerTx) fails() {
	if turn := t.fenced.turn; turn != nil && (t.leaked.Load() || t.conn.IsClosed() || !t.savepoints.Open()) {
		turn.blame(t.call)
	}
}

// maxBlameless limits what is kept of a handler that continues from savepoints.
const maxBlameless = 16

// lockWait checks looks times during a transaction, but at least once in rarest, because a handler
// may have timeouts of its own. Each check may take lookTimeout, however little time the
// transaction has: a busy server answers it as late as anything else.
const (
	looks       = 8
	rarest      = 250 * time.Millisecond
	lookTimeout = time.Second
)

// lockWait finds out whether a transaction has waited for locks, to classify its end by a timeout.
// lock_timeout limits each wait by itself, and not by the time that is left for a second one.
// lockWait asks the server over another connection, and only if the transaction takes long.
type lockWait struct {
	sink  *Sink
	every time.Duration
	pid   uint32
	key   uint64 // of an advisory lock that the transaction holds

	mu       sync.Mutex
	cancel   context.CancelFunc // ends the check under way
	timer    *time.Timer        // nil when over
	found    bool
	began    time.Time
	until    time.Time // the transaction's deadline, if any: no check begins after it
	due      time.Time // when the next check begins, or when the last one should have
	answered time.Time // when the last check that was answered began
	open     bool      // a check has begun since, and was not answered
}

func (s *Sink) watchLocks(ctx context.Context, conn *pgx.Conn, as *advances) *lockWait {
	w := &lockWait{sink: s, cancel: func() {}, began: time.Now(), pid: conn.PgConn().PID(), key: uint64(as.locks[0])}
	w.until, _ = ctx.Deadline()
	w.every = max(min(min(limitIn(ctx, s.options.StatementTimeout), s.options.left(ctx))/looks, rarest), time.Millisecond)
	w.mu.Lock() // the timer may fire at once
	defer w.mu.Unlock()
	w.due = w.began.Add(w.every)
	w.timer = time.AfterFunc(w.every, func() { w.look(ctx) })
	return w
}

// waitingSQL reports whether a backend waits for a lock. It finds the backend by its process id
// and, because a pooler makes that up, by a lock that it holds.
const waitingSQL = `
select exists (
	select from pg_catalog.pg_locks w
	where not w.granted and (w.pid = $1::bigint or w.pid in (
		select l.pid from pg_catalog.pg_locks l
		where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
			and l.classid = $2::bigint::oid and l.objid = $3::bigint::oid
			and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()))))`

func (w *lockWait) look(ctx context.Context) {
	if ctx.Err() != nil {
		return // the transaction's time is up; a wait that begins now is not the reason
	}
	ctx, done := context.WithTimeout(ctx, lookTimeout)
	defer done()
	began := time.Now()
	w.mu.Lock()
	w.cancel, w.open = done, w.open || w.canAsk()
	over := w.timer == nil
	w.mu.Unlock()
	if over {
		return
	}
	var waits bool
	// An error says nothing about the transaction.
	err := w.sink.pool.QueryRow(ctx, waitingSQL, int64(w.pid), int64(w.key>>32), int64(w.key&0xffffffff)).Scan(&waits)
	var refused *pgconn.PgError
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil || errors.As(err, &refused) {
		w.answered, w.open = began, false
	}
	if w.found = w.found || waits; !w.found && w.timer != nil {
		w.due = time.Now().Add(w.every)
		w.timer.Reset(w.every)
	}
}

// canAsk reports whether the pool can send a check. If not, no answer is missing.
func (w *lockWait) canAsk() bool {
	pool := w.sink.pool.Stat()
	return pool.AcquiredConns() < pool.MaxConns()
}

// stop reports whether the transaction was found waiting, and whether that is known. It is unknown
// if the server has left a check unanswered and answered none that began in the second half of the
// time: the time was then up for the server, not for the handler. It is also unknown if this
// process did not run and so missed a check that was due. Time after the deadline does not count,
// because a handler may return as late as it likes.
func (w *lockWait) stop() (waited, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel()
	w.timer.Stop()
	w.timer = nil
	end := time.Now()
	if !w.until.IsZero() && w.until.Before(end) {
		end = w.until
	}
	half := w.began.Add(end.Sub(w.began) / 2)
	open := w.open || end.Sub(w.due) > w.every && w.canAsk()
	return w.found, !open || w.answered.After(half)
}

func timedOut(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || sqlState(err) == codeQueryCanceled
}

// judge marks a timeout as [epoch.ErrTransient] after a wait for locks, or if nobody knows.
func (w *lockWait) judge(ctx context.Context, err error) error {
	waited, known := w.stop()
	switch {
	case err == nil, !timedOut(ctx, err), errors.Is(err, epoch.ErrTxEndedByHandler), errors.Is(err, epoch.ErrAbandoned):
		return err
	case waited:
		return fmt.Errorf("%w: time was up after a wait for locks of other transactions: %w", epoch.ErrTransient, err)
	case !known:
		return fmt.Errorf("%w: time was up, and it is not known whether the transaction waited for locks of other transactions: %w", epoch.ErrTransient, err)
	default:
		return err
	}
}
