package pgsink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file begins transactions. It remembers what their first round trip may leave out: the early
// check, after a proof, and the state of the session, which is compared at the end to see whether a
// handler has changed it unseen.

// A transaction begins before the handler is called, or late, together with the handler's first
// statement, which saves one of three round trips. It may begin late only right after this process
// has claimed or committed. Then the claim holds as far as anybody knows, so that look_early is not
// needed, and the connection is hardly dead. A dead connection can be replaced only before the
// handler is called.
//
// The pipelined mode (queue.go) hides the same round trip, and sends the commit along as well.
// Both are needed, because neither can stand for the other: a Tx has to wait for the answer to
// each statement, so that only the beginning can travel with the first one, and a Queue has no
// answers to give, so that everything can travel at once. Without the late begin, a handler of
// one statement takes three round trips instead of two. What the two have in common is in this
// file and commit.go: queueEnter, entered, queueCommit and the proofs.

// mayBeginLate reports whether the transaction may begin with the handler's first statement. In
// pgx's other query modes a text may be several statements, or takes a round trip to describe.
func (t *fenced) mayBeginLate() bool {
	return t.isProven() && !t.sink.unnamed.Load() && queryMode(t.conn) == pgx.QueryExecModeCacheStatement
}

// isProven reports whether the early check would find nothing, because a claim or a commit of this
// process has just left the fences as the transaction wants them.
func (t *fenced) isProven() bool { return time.Now().Before(t.proven) }

const mostEntering = 5 // statements of queueEnter

// queueEnter begins the transaction. The locks, by which a later claim finds it, come before
// look_early, so that the claim finds every transaction that look_early let through.
func (t *fenced) queueEnter(b *pgx.Batch, proven bool) {
	statement, idle, wait, whole := t.sink.options.bounds(t.ctx, t.asked.LockWait)
	b.Queue(t.sink.sql.begin)
	b.Queue(t.sink.sql.enter, statement, idle, wait, whole, t.as.locks[0])
	t.timeouts = statement + " " + wait
	if t.expected, t.role = t.sink.expect(t.conn, t.timeouts); t.expected == nil {
		b.Queue(t.sink.sql.state)
	}
	if more := t.as.locks[1:]; len(more) > 0 {
		b.Queue(t.sink.sql.lock, more)
	}
	if !proven {
		b.Queue(t.sink.sql.lookEarly, append(t.as.columns()[:5], t.nonce)...)
	}
	t.entering = b.Len()
}

// entered reads the answers to the statements of queueEnter, except to the BEGIN.
func (t *fenced) entered(r pgx.BatchResults) error {
	var xid string
	if err := r.QueryRow().Scan(&xid, nil, nil, nil, nil, nil); err != nil {
		return err
	}
	id, err := strconv.ParseInt(xid, 10, 64)
	if err != nil {
		return fmt.Errorf("the transaction's id: %w", err)
	}
	t.xid = &id
	rest := t.entering - 2
	if t.expected == nil {
		var state, role string
		if err := r.QueryRow().Scan(&state, &role); err != nil {
			return err
		}
		keepState(t.conn, state, t.timeouts, role)
		rest--
	}
	for range rest {
		if _, err := r.Exec(); err != nil {
			return err
		}
	}
	t.begun = true
	return nil
}

// begin begins the transaction in a round trip of its own. If the connection was dead, the error
// is unexecuted: nothing was done, and the caller may try another connection.
func (t *fenced) begin(ctx context.Context) error {
	b := batchOf(mostEntering)
	t.queueEnter(b, t.isProven())
	r := t.conn.SendBatch(ctx, b)
	_, err := r.Exec()
	if err == nil {
		err = t.entered(r)
	}
	if closed := r.Close(); err == nil {
		err = closed
	}
	switch {
	case err == nil:
		return nil
	case vanished(err):
		closeNow(t.conn)
		return unexecuted{err}
	}
	if refused := t.refused(err); refused != nil {
		err = refused
	}
	defer t.discard()
	if err = t.abandon(ctx, t.own(explain(err))); t.conn.IsClosed() {
		return unexecuted{err}
	}
	return err
}

// begin begins the transaction unless it has begun, before any statement of the handler's. If r is
// not nil, first was sent along and r has the answers to it.
func (t *handlerTx) begin(ctx context.Context, first ...*pgx.QueuedQuery) (r pgx.BatchResults, err error) {
	switch {
	case t.fenced.begun:
		return nil, nil
	case t.unbegun != nil:
		return nil, t.unbegun
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(first) > 0 && t.fenced.isProven():
		if r, err := t.beginWith(ctx, first); r != nil || err != nil {
			return r, err
		}
	}
	err = t.fenced.begin(ctx)
	if mark, is := err.(unexecuted); is { //nolint:errorlint // it cannot be repeated: the handler runs
		err = mark.error
	}
	if vanished(err) {
		err = notAlong(err)
	}
	t.unbegun = err
	return nil, err
}

// beginWith sends first together with the statements that begin the transaction. It returns neither
// results nor an error if nothing was executed and the connection is unchanged: for example,
// because first could not be prepared, which must fail within the transaction as usual.
func (t *handlerTx) beginWith(ctx context.Context, first []*pgx.QueuedQuery) (r pgx.BatchResults, err error) {
	b := batchOf(mostEntering + len(first))
	t.fenced.queueEnter(b, true) // it was proven a moment ago; a refusal by look_early could not be told apart
	for _, q := range first {    // a copy: if this comes to nothing, the originals are sent
		along := *q
		b.QueuedQueries = append(b.QueuedQueries, &along)
	}
	sent := false
	defer func() {
		if !sent { // an argument's method panicked, or ended the goroutine
			closeNow(t.conn)
			t.unbegun = notAlong(errors.New("an argument panicked"))
		}
	}()
	r = t.conn.SendBatch(ctx, b)
	sent = true
	if _, err = r.Exec(); err == nil {
		err = t.fenced.entered(r)
	}
	if err == nil {
		return r, nil
	}
	_ = r.Close()
	safe := inert.Error(err) // an argument's method may have returned it
	switch closed := t.conn.IsClosed(); {
	case closed && unencodable(safe): // pgx closes the connection after it
		t.unbegun = notAlong(safe)
	case closed: // lost, which the end of the call finds
	case t.conn.PgConn().TxStatus() == noTransaction: // pgx could not prepare first
		return nil, nil
	default: // the BEGIN was executed, and a statement behind it failed
		t.unbegun = t.fenced.abandon(ctx, notAlong(t.fenced.own(explain(safe))))
	}
	return nil, err
}

// notAlong marks an error that is due to the late begin, as far as is known. The proof is spent, so
// that the next transaction does not begin late and shows what is at fault.
func notAlong(err error) error {
	return fmt.Errorf("%w: the transaction could not be begun with the handler's first statement: %w", epoch.ErrTransient, err)
}

// along returns a statement that may be sent in a batch, or nothing. In a batch, pgx knows none of
// the options that may be left in args. Exec sends a text without arguments in the simple protocol,
// where it may be several statements.
func along(sql string, args []any) []*pgx.QueuedQuery {
	if len(args) == 0 {
		return nil
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return nil
	}
	return []*pgx.QueuedQuery{{SQL: sql, Arguments: args}}
}

// proofLife is how long a claim or an advance is trusted, so that the next transaction skips
// look_early. If the fence has changed since, the check at the end refuses the transaction.
const proofLife = 100 * time.Millisecond

// proofs are the fences as claims and advances of this process have left them.
type proofs struct {
	mu   sync.Mutex
	left map[epoch.Partition]proof
}

type proof struct {
	claim epoch.ClaimID
	next  epoch.Offset
	at    time.Time // just before the statement that proves it was sent
}

// claimed notes a claim that this process has made.
func (p *proofs) claimed(f epoch.Fence, begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(f.Partition, proof{f.Claim, f.Next, begun})
}

// advanced notes what a commit of this process has left.
func (p *proofs) advanced(as *advances, sent time.Time) {
	if as.held {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range as.list {
		p.put(a.Partition, proof{a.Claim, a.To, sent})
	}
}

func (p *proofs) put(of epoch.Partition, is proof) {
	if p.left == nil {
		p.left = map[epoch.Partition]proof{}
	}
	p.left[of] = is
}

// spend returns until when as is known not to be refused. If that is unknown, the time is zero or
// has passed. spend also removes the proofs: only a success brings new ones.
func (p *proofs) spend(as *advances) (until time.Time) {
	if as.held {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	until = time.Now().Add(proofLife)
	for _, a := range as.list {
		is := p.left[a.Partition]
		delete(p.left, a.Partition)
		if is.claim != a.Claim || is.next != a.From {
			until = time.Time{}
		} else if ends := is.at.Add(proofLife); ends.Before(until) {
			until = ends
		}
	}
	return until
}

// sessionState is the part of a session's state that a function can change unseen and that other
// calls depend on: with another state they fail, or write to other tables. [classify] finds other
// changes in the text of a statement. The two settings that differ between transactions come last.
const sessionState = "pg_catalog.concat_ws(' ', pg_catalog.current_setting('search_path'), current_user, session_user, " +
	"pg_catalog.current_setting('session_replication_role'), pg_catalog.current_setting('row_security'), " +
	"pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('TimeZone'), pg_catalog.pg_my_temp_schema(), " +
	"pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'))"

// sessionChanged returns an expression for whether the state differs from the parameter or, if the
// parameter is null, from the state that the transaction noted when it began. The expression calls
// texteq because a search_path could replace the operator.
func sessionChanged(parameter string) string {
	return "(not pg_catalog.texteq(coalesce(" + parameter + "::text, pg_catalog.current_setting('epochfence.session', true), ''), " + sessionState + "))"
}

// Reading the state takes the server several microseconds. A transaction always reads it at its
// end. It reads it at its beginning on a new connection, and once any session has changed between
// transactions: by another user of the pool, a pooler with several sessions, or an unseen function.

// knownSession is a connection's role, and its state without the two settings at the end.
type knownSession struct{ state, role string }

const sessionName = "epochfence: session"

// expect returns the role of conn's session and its state with these timeouts, or nil if the
// transaction must read them.
func (s *Sink) expect(conn *pgx.Conn, timeouts string) (state, role *string) {
	kept, is := conn.PgConn().CustomData()[sessionName].(*knownSession)
	if !is || s.varies.Load() {
		return nil, nil
	}
	now := kept.state + timeouts
	return &now, &kept.role
}

// keepState keeps a state that was read under these timeouts. If the server formats the timeouts
// differently, nothing is kept and the next transaction reads the state again.
func keepState(conn *pgx.Conn, state, timeouts, role string) {
	if state, same := strings.CutSuffix(state, timeouts); same {
		conn.PgConn().CustomData()[sessionName] = &knownSession{state, role}
	}
}

// varied makes transactions read the state as they begin, if this one relied on a kept state.
func (t *fenced) varied() {
	if t.expected != nil {
		t.sink.varies.Store(true)
	}
}

// changed records the answer of the last statement: "true" if the session has changed. If a text
// was not plain, that is no surprise.
func (t *fenced) changed(is string) {
	if is == "true" && t.altered == "" {
		t.varied()
		t.spoilt = true
	}
}
