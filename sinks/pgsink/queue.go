package pgsink

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file is the pipelined mode: the handler only queues, and the whole transaction is one round
// trip. It decides which statement an error belongs to, and whether a queue can be one batch.
// commit.go decides what an error means, and statement.go which texts are queued.

// Queued is the pipelined mode of a [Sink], for handlers that only queue statements. The beginning
// of the transaction, the statements, the advances and the commit travel in one round trip. The
// guarantees are the same.
type Queued struct{ *Sink }

var (
	_ epoch.Sink[*Queue]    = Queued{}
	_ epoch.Holding[*Queue] = Queued{}
)

// Queued returns the pipelined mode of s, on the same pool and fences.
func (s *Sink) Queued() Queued { return Queued{s} }

const maxQueue = 1 << 16

// Queue takes a handler's statements. They run in order, after the handler has returned and before
// the commit. If one fails, the Commit fails with a [*StatementError] and nothing is committed. A
// condition that the handler would check in between must be part of the SQL: a constraint, or a
// function that raises.
//
// It has the methods of sqlc's DBTX that :exec queries need. It belongs to one call of the handler,
// and only one goroutine may use it at a time. It refuses the same texts as a [Tx].
type Queue struct {
	*queue

	mu      sync.Mutex // against use after the handler returned
	closed  bool
	refused error // why the call fails, whatever it returns
}

// queue is what all calls of a transaction have queued.
type queue struct {
	as      *advances
	asked   epoch.TxOptions
	alone   bool
	gone    atomic.Bool // the transaction was abandoned
	mu      sync.Mutex  // of items: calls may run beside each other
	items   []queuedStatement
	replays bool // it deletes a dead letter that was replayed
}

type queuedStatement struct {
	sql   string
	args  []any
	apart bool
	ours  bool // the sink's or the outbox's, not the handler's
}

// Exec queues a statement. The tag is empty, because the number of affected rows is not known yet.
// args must not be changed until the Commit has returned. Exec returns [ErrTxClosed] after the
// handler has returned, and an error if 65,536 statements are queued. ctx does not limit the
// statement: the context of the Commit limits all of them.
func (q *Queue) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	sql, args, err := rewritten(ctx, sql, args) // before the lock, because the rewriter may use q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.mu.Lock()
	defer q.queue.mu.Unlock()
	switch {
	case q.gone.Load():
		return pgconn.CommandTag{}, fmt.Errorf("pgsink: %w", epoch.ErrAbandoned)
	case q.closed:
		return pgconn.CommandTag{}, ErrTxClosed
	case q.refused != nil:
		return pgconn.CommandTag{}, q.refused
	case len(q.items) >= maxQueue:
		return pgconn.CommandTag{}, fmt.Errorf("pgsink: a transaction may queue %d statements; use smaller batches", maxQueue)
	}
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	k := classify(sql)
	if q.refused = k.refusal(sql, q.alone); q.refused != nil {
		return pgconn.CommandTag{}, q.refused
	}
	q.items = append(q.items, queuedStatement{sql, args, k.apart, pgschema.IsOwn(ctx)})
	return pgconn.CommandTag{}, nil
}

// callAll runs the calls. There is no transaction yet, so a call that hangs holds no lock, and
// what it queues after it was abandoned is never sent.
func (q *queue) callAll(ctx context.Context, calls []func(context.Context, *Queue) error) error {
	stop := q.asked.AfterAbandoned(func() { q.gone.Store(true) })
	defer stop() // also when a call panics
	err := q.asked.Each(len(calls), func(i int) error {
		err := q.call(ctx, i, calls[i])
		switch {
		case q.gone.Load():
			return epoch.Abandoned(err)
		case ctx.Err() != nil:
			return ended(ctx, err)
		}
		return err
	})
	q.asked.Beside = nil // what follows is one call
	if !stop() {
		return epoch.Abandoned(err)
	}
	return err
}

// call runs one call. A refused text fails it, whatever it returns.
func (q *queue) call(ctx context.Context, i int, call func(context.Context, *Queue) error) error {
	own := &Queue{queue: q}
	defer own.close()
	err := inert.Error(call(ctx, own))
	if own.close(); own.refused == nil {
		return err
	}
	if err != nil && !errors.Is(err, own.refused) {
		err = fmt.Errorf("%w; the handler returned: %w", own.refused, err)
		return &epoch.CallError{Call: i, Err: err}
	}
	return &epoch.CallError{Call: i, Err: own.refused}
}

var errQueueReads = errors.New("pgsink: a queue has no results to read: use the Sink without Queued for handlers that query")

// Query returns an error: a queue has no results to read.
func (q *Queue) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return failedRows{errQueueReads}, errQueueReads
}

// QueryRow returns a row whose Scan returns an error: a queue has no results to read.
func (q *Queue) QueryRow(context.Context, string, ...any) pgx.Row { return failedRow{errQueueReads} }

func (q *Queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// Commit implements [epoch.Sink]. The calls run before there is a transaction: if one returns an
// error, nothing is sent.
func (s Queued) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, q *Queue) error) error {
	set, err := newAdvances(as)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, o, calls...); err != nil {
		return fmt.Errorf("pgsink: commit %s: %w", set, err)
	}
	return nil
}

// CommitHeld implements [epoch.Holding]. It is [Queued.Commit] with the check of [Sink.CommitHeld].
func (s Queued) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, q *Queue) error) error {
	set, err := newHeld(h)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, o, apply); err != nil {
		return fmt.Errorf("pgsink: commit %s under its claim: %w", set, err)
	}
	return nil
}

func (s Queued) commit(ctx context.Context, as *advances, o epoch.TxOptions, calls ...func(context.Context, *Queue) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	q := &queue{as: as, asked: o, alone: len(calls) <= 1}
	if err := q.callAll(ctx, calls); err != nil {
		return err
	}
	err := s.sendWhole(ctx, q)
	if q.replays { // a refusal of theirs is not the handler's
		err = changed(err)
	}
	return err
}

// sendWhole sends the statements of a queue in one batch, if possible, and otherwise one by one,
// as a handler with a [Tx] would.
func (s Queued) sendWhole(ctx context.Context, q *queue) error {
	items := q.items
	if !s.apart(items) {
		err := s.sendAll(ctx, q)
		var lost vanishedError
		if !errors.As(err, &lost) {
			return err
		}
	}
	return s.Sink.commit(ctx, q.as, q.asked, q.alone, func(ctx context.Context, tx Tx) error {
		for i, q := range items {
			as := ctx
			if q.ours {
				as = pgschema.Own(ctx)
			}
			if _, err := tx.Exec(as, q.sql, q.args...); err != nil {
				return &StatementError{Number: i + 1, Of: len(items), SQL: q.sql, Err: err}
			}
		}
		return nil
	})
}

// apart reports whether the statements must be sent one by one: one is not plain, so that the
// transaction is looked at behind it, or a batch's answer would not show that one of the sink's own
// has failed.
func (s Queued) apart(items []queuedStatement) bool {
	if slices.ContainsFunc(items, func(q queuedStatement) bool { return q.apart }) {
		return true
	}
	return slices.ContainsFunc(items, func(q queuedStatement) bool { return q.ours }) &&
		slices.ContainsFunc(items, func(q queuedStatement) bool { return !single(q.sql) }) &&
		s.pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
}

// vanishedError means that a prepared statement of ours was gone. Nothing was committed.
type vanishedError struct{ error }

func (e vanishedError) Unwrap() error { return e.error }

// sendAll sends the statements of a queue in one batch. All of them are plain.
func (s Queued) sendAll(ctx context.Context, q *queue) error {
	return s.onCommit(ctx, q.asked, func(conn *pgx.Conn) (err error) {
		t := s.newFenced(ctx, conn, q.as, q.asked, q.alone)
		locks := s.watchLocks(ctx, conn, q.as)
		defer func() { err = locks.judge(ctx, err) }()
		defer t.discard()
		defer q.asked.AfterAbandoned(t.cut)() // the arguments' methods are the handler's, and may hang
		return t.send(ctx, q.items)
	})
}

// send sends the whole transaction. If a statement fails, the server skips all that follow, the
// COMMIT too.
func (t *fenced) send(ctx context.Context, items []queuedStatement) error {
	b := batchOf(mostEntering + len(items) + 2)
	t.queueEnter(b, t.isProven())
	for _, q := range items {
		b.Queue(q.sql, q.args...)
	}
	t.queueCommit(b)
	r, err := t.sendBatch(ctx, b)
	if err != nil {
		return &StatementError{Of: len(items), Err: err}
	}
	if _, err := r.Exec(); err != nil { // the BEGIN's
		_ = r.Close()
		return t.unsent(ctx, inert.Error(err), items) // an argument's method may have returned it
	}
	if err := t.entered(r); err != nil {
		_ = r.Close()
		return t.failed(ctx, explain(err))
	}
	return t.answered(ctx, r, items)
}

// sendBatch sends b. If an argument's method panics or ends the goroutine, no COMMIT was sent.
func (t *fenced) sendBatch(ctx context.Context, b *pgx.Batch) (r pgx.BatchResults, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		closeNow(t.conn)
		if v := recover(); v != nil {
			err = fmt.Errorf("an argument panicked: %s\n%s", inert.Text(v), debug.Stack())
		}
	}()
	r = t.conn.SendBatch(ctx, b)
	returned = true
	return r, nil
}

// answer is what matters of the answer to a statement.
type answer struct {
	tag  string
	ours bool // it is the check's

	changed string // what the check says of the session
}

// answered reads the rest of r: the answers to the handler's statements, to the check and to
// COMMIT. In the simple protocol one text may hold several statements, or none. So the last answer
// is taken for COMMIT's if there was no error and the check's answer comes just before it.
func (t *fenced) answered(ctx context.Context, r pgx.BatchResults, items []queuedStatement) error {
	var last, before answer
	n, commits := 0, 0
	for ; ; n++ {
		rows, err := r.Query()
		if err != nil {
			break
		}
		a := answer{}
		for rows.Next() {
			raw := rows.RawValues()
			if a.ours = len(raw) == 2 && string(raw[0]) == t.nonce; a.ours {
				a.changed = string(raw[1])
			}
		}
		rows.Close()
		if rows.Err() != nil {
			break
		}
		a.tag = rows.CommandTag().String()
		if a.tag == "COMMIT" || a.tag == "PREPARE TRANSACTION" {
			commits++
		}
		last, before = a, last
	}
	err := r.Close()
	switch {
	case last.tag == "COMMIT" && before.ours: // whatever happens to the connection afterwards
		t.changed(before.changed)
		t.sink.proofs.advanced(t.as, t.sent)
		return nil
	case err == nil:
		return t.abandon(ctx, fmt.Errorf("the server answered COMMIT with %q: the transaction did not end as it should", last.tag))
	case !before.ours && !last.ours && commits > 0: // the handler's, of our transaction or of one that it began instead
		return t.failed(ctx, fmt.Errorf("%w; then: %w", epoch.ErrTxEndedByHandler, t.statement(err, n, items)))
	case !before.ours && !last.ours:
		return t.failed(ctx, t.statement(err, n, items))
	case vanished(err):
		return t.failed(ctx, vanishedError{err})
	case definite(err): // the check was answered, and then COMMIT was refused
		return t.refusedCommit(err)
	default:
		return inDoubt(ended(ctx, err))
	}
}

// statement names the statement that failed, the n-th that was sent. Only in the simple protocol
// is that unknown, behind a text that may have had several answers. An error behind the last of
// the items is that of the check.
func (t *fenced) statement(err error, n int, items []queuedStatement) error {
	switch {
	case t.refused(err) != nil:
		return err
	case queryMode(t.conn) == pgx.QueryExecModeSimpleProtocol &&
		slices.ContainsFunc(items[:min(n+1, len(items))], func(q queuedStatement) bool { return !single(q.sql) }):
		return &StatementError{Of: len(items), Err: err}
	case n < len(items) && items[n].ours:
		return ours(&StatementError{Number: n + 1, Of: len(items), SQL: items[n].sql, Err: err})
	case n < len(items):
		return &StatementError{Number: n + 1, Of: len(items), SQL: items[n].sql, Err: err}
	case vanished(err):
		return vanishedError{err}
	default:
		return ours(explain(err)) // of the check
	}
}

// unsent interprets an error before the first result: of preparing, unless the connection is gone.
func (t *fenced) unsent(ctx context.Context, err error, items []queuedStatement) error {
	var failed pgx.ErrPreprocessingBatch
	preparing := errors.As(err, &failed)
	if preparing {
		err = preprocessing(failed, items)
	}
	switch {
	case unencodable(err): // by the handler's argument; pgx closes the connection after it
		return err
	case preparing && ctx.Err() != nil:
		return ended(ctx, err)
	case preparing && t.conn.IsClosed(): // lost while pgx asked what the statements are
		return unexecuted{inDoubt(err)}
	case vanished(err) && !preparing: // another user of the connection has deallocated what pgx has prepared
		closeNow(t.conn)
		return unexecuted{err}
	case !t.conn.IsClosed(): // a statement could not be prepared
		return t.abandon(ctx, faultless(err))
	case neverRan(err):
		return unexecuted{inDoubt(ended(ctx, err))}
	default:
		return t.failed(ctx, err)
	}
}

// preprocessing finds the statement that could not be prepared or encoded.
func preprocessing(err pgx.ErrPreprocessingBatch, items []queuedStatement) error {
	e := &StatementError{Of: len(items), SQL: err.SQL(), Err: inert.Error(err)}
	same := 0
	for i, q := range items {
		if q.sql != e.SQL {
			continue
		}
		if same++; same == 1 {
			e.Number = i + 1
		}
	}
	switch {
	case same == 0:
		return inert.Error(err) // one of the sink's own
	case same > 1 && unencodable(err):
		e.Number = 0
	}
	return e
}
