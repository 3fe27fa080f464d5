package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/sql/txdb"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file is the transaction as a handler has it: who may use it, and until when. statement.go
// decides which texts are sent, and blame.go what a failed call says about its message.

// Tx is the transaction that a handler writes through. Its methods are those of the interface
// that sqlc calls DBTX, for pgx/v5. It has no Commit and no Rollback. A text that begins or ends
// a transaction is not sent ([epoch.ErrTxControl]). A text that may change the transaction or
// the session is sent only if the call has the transaction to itself
// ([epoch.ErrOwnTransaction]), and its connection is closed afterwards; if not, the consumer
// calls the handler again in a transaction of its own.
//
// A Tx belongs to one call of the handler. Only one goroutine may use it at a time. Its methods
// return an error once the call has returned, or once the transaction was abandoned
// ([epoch.ErrAbandoned]). A [pgx.QueryRewriter] is called without a connection, and the Conn method
// of rows returns nil.
//
// Of calls beside each other, one waits while another has rows, a batch or a savepoint open. An Exec
// may travel with those of others: once it was sent, its context no longer ends it.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

var (
	// ErrTxClosed is returned by a [Tx] or a [Queue] that is used after its handler has returned.
	ErrTxClosed = errors.New("pgsink: the transaction is used after its handler returned")

	errTxInUse = errors.New("pgsink: conn busy: the transaction is used by two goroutines, or within a callback of its own")
	errUnread  = errors.New("pgsink: conn busy: read the rows of the transaction to their end or Close them before CopyFrom")
	errOpen    = errors.New("the handler left a result open: read rows to their end or Close them, Scan every QueryRow, Close every batch")
	errLeaked  = errors.New("the handler returned while a goroutine of it was using the transaction")
	errLeft    = errors.New("the handler ended the transaction")

	errUndone   = fmt.Errorf("the handler has rolled its transaction back: %w", pgx.ErrTxClosed)
	errEncoding = errors.New("client_encoding and standard_conforming_strings cannot be changed: pgx relies on them")
	errCopyText = errors.New("a COPY from or to the client cannot be sent as text: use CopyFrom, and SELECT instead of COPY TO STDOUT")
)

// handlerTx is the [Tx] of one call. What it notes of errors and refusals, judge reads when the
// call has returned: a handler may hide any error, and its message fails all the same.
type handlerTx struct {
	fenced *fenced
	as     *advances
	conn   *pgx.Conn
	call   int

	mu        sync.Mutex // held while the connection is in use
	closed    bool
	ours      bool        // the statement being sent is the sink's or the outbox's, not the handler's
	unbegun   error       // why the transaction could not be begun
	failed    error       // the first error of a statement
	last      fault       // the last error, except 25P02, which only repeats that there was one
	blameless []fault     // the last errors that are no message's fault
	broke     error       // the error that closed the connection
	leaked    atomic.Bool // set without mu
	left      bool        // the handler ended the transaction
	odd       bool        // a text that is not plain was sent, which may have ended it

	refused    error // why the call fails, whatever it returns
	sent       bool
	savepoints txdb.Savepoints
	undone     bool // a handle was rolled back, so the call's writes are too

	has    bool // the turn, if calls run beside each other
	unread int  // rows and batches whose error is not known
}

// fault is a statement's error. as is its meaning if it is no message's fault, and otherwise nil.
type fault struct {
	err *pgconn.PgError
	as  error
}

// run calls the handler and makes its error harmless: the methods of an error may panic.
func (t *handlerTx) run(ctx context.Context, apply func(context.Context, Tx) error) error {
	defer t.close()
	return inert.Error(apply(ctx, t))
}

// close ends the use of the transaction. If a goroutine that the handler has left behind is
// using it, the connection is closed, because nobody knows what that goroutine would still send.
func (t *handlerTx) close() {
	if !t.mu.TryLock() {
		t.leaked.Store(true)
		t.fails()
		_ = t.conn.PgConn().Conn().Close() // ends the goroutine's wait
		t.mu.Lock()
	}
	t.closed = true
	t.mu.Unlock()
}

// ready reports whether the connection is where the next call, or the end of the transaction,
// can use it: within the transaction, or before it if nothing was sent.
func (t *handlerTx) ready() bool {
	pg := t.conn.PgConn()
	return !t.leaked.Load() && !t.left && !pg.IsClosed() && !pg.IsBusy() && (pg.TxStatus() == inTransaction || !t.fenced.begun)
}

// use takes the connection. After a nil error the caller must call done.
func (t *handlerTx) use(ctx context.Context) error {
	err := t.lock()
	if err == nil {
		if err = t.takeTurn(ctx); err != nil {
			t.mu.Unlock()
		}
	}
	return err
}

// lock is use without the turn.
func (t *handlerTx) lock() error {
	if err := t.fenced.uncut(); err != nil {
		return err
	}
	if !t.mu.TryLock() {
		return errTxInUse
	}
	err := t.usable()
	if err != nil {
		t.mu.Unlock()
	}
	return err
}

// take takes the connection for what was begun before. It never waits, because the connection
// may be in use by what called the caller: the source of a COPY, a value's method, a tracer.
func (t *handlerTx) take() error {
	if !t.mu.TryLock() {
		return errTxInUse
	}
	if t.closed {
		t.mu.Unlock()
		return ErrTxClosed
	}
	return nil
}

// usable returns why nothing may be sent any more. The first refusal stays the reason for the
// rest of the call, so that a handler which continues writes nothing that its message would
// lose.
func (t *handlerTx) usable() error {
	switch {
	case t.closed:
		return ErrTxClosed
	case t.refused != nil:
		return t.refused
	case t.left:
		return errLeft
	case t.undone:
		t.refused = errUndone // the handler may expect to keep what it writes now
		return errUndone
	case t.savepoints.Failed() != nil:
		return t.savepoints.Failed()
	}
	return context.Cause(t.fenced.ctx)
}

// done gives the connection back, and notes the error of what was sent.
func (t *handlerTx) done(err error) {
	t.note(err)
	t.ours = false
	t.passTurn()
	t.mu.Unlock()
}

// allow returns an error if a text may not be sent, and otherwise records what the text does. A
// refused text fails the call, whatever the handler does with the error. did is to be called when
// the text was executed.
func (t *handlerTx) allow(ctx context.Context, sql string) (did func(), err error) {
	k, h := classify(sql), txdb.HandleOf(ctx)
	if err := t.savepoints.Use(h); err != nil {
		return nil, closedTo(h, err)
	}
	if t.refused = k.refusal(sql, t.fenced.alone); t.refused != nil {
		return nil, t.refused
	}
	if err := t.fenced.stop(); err != nil {
		return nil, err
	}
	if did, err = t.savepoints.Sends(h, sql, sqltext.PostgreSQL); err != nil {
		return nil, err
	}
	t.sent = true
	if k.apart { // noted although it may fail: a lock of the session outlives an error
		t.odd = true
		t.fenced.altered = cmp.Or(t.fenced.altered, excerpt(sql))
	}
	return did, nil
}

// allowed returns the statement that is sent for this one, if it may be.
func (t *handlerTx) allowed(ctx context.Context, sql string, args []any) (_ string, _ []any, did func(), err error) {
	if sql, args, err = rewritten(ctx, sql, args); err == nil {
		did, err = t.allow(ctx, sql)
	}
	return sql, args, did, err
}

// follow finds out whether the handler has ended the transaction unseen by allow: by a text that
// the server reads differently, because a setting changes what a backslash means. Without a
// transaction the protocol shows it. If another one was begun instead, only the server knows,
// and is asked after each text that is not plain.
func (t *handlerTx) follow() {
	pg := t.conn.PgConn()
	if t.left || !t.fenced.begun || pg.IsClosed() || pg.IsBusy() {
		return
	}
	switch pg.TxStatus() {
	case noTransaction:
		t.left = true
	case inTransaction:
		if t.odd && t.fenced.xid != nil {
			t.left = !within(t.conn, *t.fenced.xid)
		}
		t.odd = false
	}
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if c, is := ctx.Value(controlKey{}).(control); is {
		return tag, t.control(ctx, c)
	}
	if err := t.lock(); err != nil {
		return tag, err
	}
	t.ours = pgschema.IsOwn(ctx)
	defer func() { t.done(err) }()
	sql, args, did, err := t.allowed(ctx, sql, args)
	if err != nil {
		return tag, err
	}
	if q := t.gathers(sql, args); q != nil {
		tag, err = t.gather(ctx, q)
	} else if err = t.takeTurn(ctx); err == nil {
		tag, err = t.exec(ctx, sql, args...)
	}
	if err == nil {
		did()
	}
	return tag, err
}

// exec sends a statement that is allowed. If the transaction has not begun, both travel together.
func (t *handlerTx) exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	switch r, err := t.begin(ctx, along(sql, args)...); {
	case err != nil:
		return tag, err
	case r != nil:
		tag, err = r.Exec()
		closed := r.Close()
		return tag, cmp.Or(err, closed)
	}
	return t.conn.Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (_ pgx.Rows, err error) {
	if err := t.use(ctx); err != nil {
		return failedRows{err: err}, err
	}
	defer func() { t.done(err) }()
	sql, args, did, err := t.allowed(ctx, sql, args)
	if err != nil {
		return failedRows{err: err}, err
	}
	r, err := t.begin(ctx, along(sql, args)...)
	if err != nil {
		return failedRows{err: err}, err
	}
	if r != nil {
		inner, err := r.Query()
		if err != nil {
			_ = r.Close()
		}
		return &rows{tx: t, inner: inner, batch: r, did: did}, err
	}
	inner, err := t.conn.Query(ctx, sql, args...)
	return &rows{tx: t, inner: inner, did: did}, err
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.use(ctx); err != nil {
		return failedRow{err}
	}
	defer t.done(nil)
	sql, args, did, err := t.allowed(ctx, sql, args)
	if err != nil {
		return failedRow{err}
	}
	r, err := t.begin(ctx, along(sql, args)...)
	if err != nil {
		return failedRow{err}
	}
	if r != nil {
		return &row{tx: t, inner: r.QueryRow(), batch: r, did: did, read: t.opens()}
	}
	return &row{tx: t, inner: t.conn.QueryRow(ctx, sql, args...), did: did, read: t.opens()}
}

// SendBatch sends the statements of b. If one of them is refused, none is sent.
func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.use(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.done(nil)
	own := &pgx.Batch{} // without the callbacks, which would be given the connection
	results := &batchResults{tx: t}
	for _, q := range b.QueuedQueries {
		sql, args, did, err := t.allowed(ctx, q.SQL, q.Arguments)
		if err != nil {
			return pgx.FailedBatchResults(b, err)
		}
		did() // as far as it matters
		own.Queue(sql, args...)
		results.callbacks = append(results.callbacks, q.Fn)
	}
	r, err := t.begin(ctx, own.QueuedQueries...)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	results.closed = t.opens()
	if results.inner = r; r == nil {
		results.inner = t.conn.SendBatch(ctx, own)
	}
	return results
}

// rewritten applies the [pgx.QueryRewriter] in args, so that [classify] sees what is sent.
func rewritten(ctx context.Context, sql string, args []any) (string, []any, error) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryExecMode:
			continue
		case pgx.QueryRewriter:
			sql, after, err := arg.RewriteQuery(ctx, nil, sql, args[i+1:])
			if err != nil {
				return "", nil, fmt.Errorf("rewrite query failed: %w", err)
			}
			return rewritten(ctx, sql, slices.Concat(args[:i:i], after))
		}
		break
	}
	return sql, args, nil
}
