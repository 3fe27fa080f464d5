package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file is for calls that run beside each other in one transaction: which of them uses the connection, what
// travels together, and on which call a failure is blamed. Everything else is as for one call after the other.
//
// A call has the turn while it uses the connection: for a statement, or until its rows, its batch and its
// savepoints are closed. Each Exec that waits for the turn is sent by the next call that gets it, with all others
// that wait, in one batch. A failed statement aborts the transaction of all, so the call whose statement was the
// first to fail is blamed, whichever call notices it. Others then get errBeside, and are not asked why.

var errBeside = errors.New("pgsink: the transaction cannot commit any more: a handler beside this one has failed")

var errExited = errors.New("the handler panicked or ended its goroutine after the transaction had failed because of it")

// turn belongs to a transaction whose calls run beside each other.
type turn struct {
	taken chan struct{} // has an element while a call has the turn
	gone  chan struct{} // closed when the transaction is abandoned

	mu      sync.Mutex
	waiting []*execution
	blamed  int   // the call that the transaction fails for, or -1
	failure error // what it fails with; set by that call alone, as it returns
}

// execution is an Exec that waits.
type execution struct {
	tx       *handlerTx
	query    *pgx.QueuedQuery
	tag      pgconn.CommandTag
	err      error
	answered chan struct{}
}

func newTurn() *turn {
	return &turn{taken: make(chan struct{}, 1), gone: make(chan struct{}), blamed: -1}
}

// blame makes call the one that the transaction fails for, if it is the first, and returns which one is. With -1
// it only returns that.
func (u *turn) blame(call int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.blamed < 0 {
		u.blamed = call
	}
	return u.blamed
}

// await waits for the turn, or for answered if it is not nil. An error says that the call need not wait.
func (t *fenced) await(ctx context.Context, answered <-chan struct{}) (has bool, err error) {
	select {
	case t.turn.taken <- struct{}{}:
		return true, nil
	case <-answered:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.ctx.Done():
		return false, context.Cause(t.ctx)
	case <-t.turn.gone:
		return false, t.uncut()
	}
}

// takeTurn returns nil once the call may use the connection. It has the lock.
func (t *handlerTx) takeTurn(ctx context.Context) (err error) {
	if t.fenced.turn == nil || t.has {
		return nil
	}
	if t.has, err = t.fenced.await(ctx, nil); err != nil {
		return err
	}
	err = t.fenced.uncut()
	if at := t.fenced.turn.blame(-1); err == nil && at >= 0 && at != t.call {
		err = errBeside
	}
	if err != nil {
		t.passTurn()
	}
	return err
}

// passTurn ends the turn, unless what the call has begun is not at its end.
func (t *handlerTx) passTurn() {
	if t.has && t.unread == 0 && !t.conn.PgConn().IsBusy() && !t.savepoints.Open() {
		t.has = false
		<-t.fenced.turn.taken
	}
}

// opens counts a result whose error only its end shows.
func (t *handlerTx) opens() (ended func()) {
	t.unread++
	return sync.OnceFunc(func() { t.unread-- })
}

// runBeside runs a call beside others.
func (t *handlerTx) runBeside(ctx context.Context, apply func(context.Context, Tx) error) error {
	turn, returned := t.fenced.turn, false
	defer func() {
		if !returned { // it panics, or ends its goroutine
			if turn.blame(-1) == t.call { // since a statement: others may have failed because of it, and returned
				turn.failure = &epoch.CallError{Call: t.call, Err: errors.Join(errExited, cmp.Or(t.failed, t.broke))}
			}
			turn.blame(t.call)
		}
		if t.has {
			t.has = false
			<-turn.taken
		}
	}()
	err := t.run(ctx, apply)
	t.mu.Lock() // of use only to a goroutine that the handler has left behind
	defer t.mu.Unlock()
	returned = true
	if err != nil || t.has || t.leaked.Load() || t.left || t.undone && t.sent || t.refused != nil || t.savepoints.Err() != nil {
		turn.blame(t.call)
	}
	if turn.blame(-1) != t.call {
		return err
	}
	if !t.has {
		if t.has, _ = t.fenced.await(context.Background(), nil); !t.has {
			return err
		}
	}
	if turn.failure = t.judge(err); turn.failure == nil {
		turn.failure = cmp.Or(t.failed, errOpen)
	}
	if _, is := turn.failure.(*epoch.CallError); !is { //nolint:errorlint // outermost only
		turn.failure = &epoch.CallError{Call: t.call, Err: turn.failure}
	}
	return turn.failure
}

// endBeside is the end of calls beside each other. err is that of [epoch.TxOptions.Each].
func (t *fenced) endBeside(ctx context.Context, err error) error {
	if t.turn.failure != nil {
		err = t.turn.failure
	}
	if err != nil || t.conn.IsClosed() {
		return t.abandon(ctx, err)
	}
	return nil
}

// gather executes a statement together with those of others. It has the lock. Once the statement was sent, it
// waits for the answer even if ctx ends: others are in the same batch.
func (t *handlerTx) gather(ctx context.Context, q *pgx.QueuedQuery) (pgconn.CommandTag, error) {
	turn, e := t.fenced.turn, &execution{tx: t, query: q, answered: make(chan struct{})}
	turn.mu.Lock()
	turn.waiting = append(turn.waiting, e)
	turn.mu.Unlock()
	has, err := t.fenced.await(ctx, e.answered)
	if has {
		t.fenced.sendWaiting()
	}
	if err != nil && turn.withdraw(e) {
		return e.tag, err
	}
	<-e.answered
	return e.tag, e.err
}

// withdraw reports whether e was not sent, and will not be.
func (u *turn) withdraw(e *execution) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := len(u.waiting)
	u.waiting = slices.DeleteFunc(u.waiting, func(w *execution) bool { return w == e })
	return len(u.waiting) < n
}

// sendWaiting sends every Exec that waits, and passes the turn on.
func (t *fenced) sendWaiting() {
	defer func() { <-t.turn.taken }()
	t.turn.mu.Lock()
	es, over := t.turn.waiting, t.turn.blamed
	t.turn.waiting = nil
	t.turn.mu.Unlock()
	answer := func(e *execution, err error) {
		e.err = err
		close(e.answered)
	}
	defer func() { // also if a tracer panics
		for _, e := range es {
			if err := e.tx.failed; err != nil && e.tx.call == over {
				answer(e, err)
			} else {
				answer(e, errBeside)
			}
		}
	}()
	if over >= 0 {
		return
	}
	b := &pgx.Batch{}
	for _, e := range es {
		b.QueuedQueries = append(b.QueuedQueries, e.query)
	}
	r := t.conn.SendBatch(t.ctx, b)
	var err error
	for len(es) > 0 && err == nil {
		if es[0].tag, err = r.Exec(); err == nil {
			answer(es[0], nil)
			es = es[1:]
		}
	}
	if _ = r.Close(); err == nil {
		return
	}
	at, err := 0, inert.Error(err)
	if unsent, is := errors.AsType[pgx.ErrPreprocessingBatch](err); is {
		same := func(e *execution) bool { return e.query.SQL == unsent.SQL() }
		at = max(slices.IndexFunc(es, same), 0)
		if unencodable(err) { // to the server nothing has failed, but the others are not sent either
			if slices.ContainsFunc(es[at+1:], same) { // nobody knows whose argument it was
				err = fmt.Errorf("%w: an argument of one of several with this text: %w", epoch.ErrOwnTransaction, err)
				es[at].tx.refused = err
			}
			es[at].tx.failed = cmp.Or(es[at].tx.failed, err)
			t.turn.blame(es[at].tx.call)
		}
	}
	failed := es[at]
	es = slices.Delete(es, at, at+1)
	failed.tx.noteOwn(err)
	answer(failed, err)
}

// gathers returns the statement if it may travel with those of others. No argument has a method that pgx might
// call: it would run, panic or hang on the goroutine of another handler.
func (t *handlerTx) gathers(sql string, args []any) *pgx.QueuedQuery {
	if t.fenced.turn == nil || t.has || t.fenced.sink.unnamed.Load() || t.fenced.mode != pgx.QueryExecModeCacheStatement {
		return nil
	}
	q := along(sql, args)
	if q == nil || slices.ContainsFunc(args, func(a any) bool { return a != nil && !isPlain(reflect.TypeOf(a)) }) {
		return nil
	}
	return q[0]
}

var timeType = reflect.TypeFor[time.Time]()

func isPlain(t reflect.Type) bool {
	switch k := t.Kind(); {
	case t == timeType, t.PkgPath() == pgtypePath && k == reflect.Struct && !strings.Contains(t.Name(), "["): // an element's type may be the handler's
		return true
	case t.NumMethod() > 0:
		return false
	case k == reflect.Pointer, k == reflect.Slice, k == reflect.Array:
		return isPlain(t.Elem())
	default:
		return k >= reflect.Bool && k <= reflect.Float64 || k == reflect.String
	}
}

const pgtypePath = "github.com/jackc/pgx/v5/pgtype"
