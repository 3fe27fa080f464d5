package pgsink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// A transaction begins before the handler is called, or late, together with the handler's first
// statement, which saves one of three round trips. It may begin late only right after this process
// has claimed or committed. Then the claim holds as far as anybody knows, so that look_early is not
// needed, and the connection is hardly dead. A dead connection can be replaced only before the
// handler is called.

// mayBeginLate reports whether the transaction may begin with the handler's first statement. In
// pgx's other query modes a text may be several statements, or takes a round trip to describe.
func (t *fenced) mayBeginLate() bool {
	return t.isProven() && !t.sink.unnamed.Load() && queryMode(t.conn) == pgx.QueryExecModeCacheStatement
}

func (t *fenced) isProven() bool { return time.Now().Before(t.proven) }

// queueEnter begins the transaction. The locks, by which a later claim finds it, come before
// look_early, so that the claim finds every transaction that look_early let through.
func (t *fenced) queueEnter(b *pgx.Batch, proven bool) {
	statement, idle, wait, whole := t.sink.options.bounds(t.ctx)
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
		b.Queue(t.sink.sql.lookEarly, t.as.groups, t.as.topics, t.as.numbers, t.as.claims, t.as.froms, t.nonce)
	}
	t.entering = b.Len()
}

// entered reads the answers to the statements of queueEnter, except to the BEGIN.
func (t *fenced) entered(r pgx.BatchResults) error {
	var xid, state, role string
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

func (t *fenced) begin(ctx context.Context) error {
	b := &pgx.Batch{}
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
	b := &pgx.Batch{}
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
	case closed:
	case t.conn.PgConn().TxStatus() == noTransaction:
		return nil, nil
	default:
		t.unbegun = t.fenced.abandon(ctx, notAlong(t.fenced.own(explain(safe))))
	}
	return nil, err
}

// notAlong marks an error that is due to the late begin, as far as is known. The proof is spent, so
// that the next transaction does not begin late and shows what is at fault.
func notAlong(err error) error {
	return fmt.Errorf("%w: the transaction could not be begun with the handler's first statement: %w", epoch.ErrTransient, err)
}

// along returns a statement that may be sent in a batch, or nothing. In a batch, pgx knows only one
// kind of option, the QueryRewriter. Exec sends a text without arguments in the simple protocol,
// where it may be several statements.
func along(sql string, args []any) []*pgx.QueuedQuery {
	if len(args) == 0 {
		return nil
	}
	switch args[0].(type) {
	case pgx.QueryRewriter:
		if len(args) > 1 {
			return nil
		}
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return nil
	}
	return []*pgx.QueuedQuery{{SQL: sql, Arguments: args}}
}
