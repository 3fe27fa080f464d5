package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/inert"
)

// Tx is what a handler writes through: the interface that sqlc calls DBTX, for
// pgx/v5. It has no Commit and no Rollback, and neither has what is behind it,
// nor the connection of the Rows it returns; a handler that sends a COMMIT as
// SQL is found out ([epoch.ErrTxEndedByHandler]). Savepoints are the handler's own.
//
// It is for one goroutine at a time, and an error to everybody once the handler
// has returned.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

var (
	// ErrTxClosed is the error of a [Tx] or a [Queue] that is used after the
	// handler has returned.
	ErrTxClosed = errors.New("pgsink: the transaction is used after its handler returned")

	errTxInUse = errors.New("pgsink: the transaction is used by two goroutines, or within a callback of its own")
	errOpen    = errors.New("the handler left a result open: read rows to their end or Close them, Scan every QueryRow, Close every batch")
	errLeaked  = errors.New("the handler returned while a goroutine of it was using the transaction")
)

// handlerTx is the Tx of one call of a handler.
type handlerTx struct {
	fenced *fenced
	as     *advances
	conn   *pgx.Conn

	mu      sync.Mutex // held while the connection is in use
	closed  bool
	unbegun error             // why the transaction could not be begun
	failed  error             // the first error of a statement
	last    *pgconn.PgError   // the last one but for what only says that there was one
	shrug   []*pgconn.PgError // those that are no message's fault, as far as they may matter
	leaked  bool

	session  session // what the handler's statements have changed of it
	controls bool    // a text has been sent that may have ended the transaction
	left     bool    // the transaction was ended
}

// run calls apply and closes t when it has returned, in whatever way.
func (t *handlerTx) run(ctx context.Context, apply func(context.Context, Tx) error) error {
	defer t.close()
	return apply(ctx, t)
}

func (t *handlerTx) close() {
	if !t.mu.TryLock() {
		t.leaked = true
		_ = t.conn.PgConn().Conn().Close() // which ends what the goroutine waits for
		t.mu.Lock()
	}
	t.closed = true
	t.mu.Unlock()
}

// ready reports whether the handler left the connection in an open transaction,
// idle and in good health.
func (t *handlerTx) ready() bool {
	pg := t.conn.PgConn()
	return !t.leaked && !t.left && !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() == inTransaction
}

// blame is why the handler's work cannot be committed, where the handler
// returned err or did not leave the transaction ready. It marks what is no
// message's fault, if it has come from this transaction: from another database it
// is the handler's to judge.
func (t *handlerTx) blame(err error) error {
	why := t.why(err)
	if own := t.own(err); own != nil {
		return mark(why, blameless(own))
	}
	return why
}

// own is the error of this transaction's that made the handler return err: the one
// that err tells of, or else the one that has aborted the transaction.
func (t *handlerTx) own(err error) *pgconn.PgError {
	for _, e := range t.shrug {
		if tells(err, e) {
			return e
		}
	}
	if pg := t.conn.PgConn(); !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() == abortedTransaction {
		return t.last
	}
	return nil
}

// tells reports whether e is err or in what it wraps.
func tells(err error, e *pgconn.PgError) bool { return errors.Is(err, e) }

func (t *handlerTx) why(err error) error {
	pg := t.conn.PgConn()
	switch {
	case t.leaked:
		return errors.Join(errLeaked, err)
	case t.left && err != nil:
		return fmt.Errorf("%w; then: %w", epoch.ErrTxEndedByHandler, err)
	case t.left:
		return epoch.ErrTxEndedByHandler
	case pg.IsClosed() || err != nil:
		return err
	case pg.IsBusy():
		return errOpen
	case pg.TxStatus() == noTransaction:
		return epoch.ErrTxEndedByHandler
	case t.failed != nil:
		return fmt.Errorf("the handler returned nil although a statement had failed, which aborts the transaction: %w", t.failed)
	default:
		return errors.New("the handler returned nil although a statement had failed, which aborts the transaction")
	}
}

// use takes the connection. Whoever gets a nil error gives it back by done.
func (t *handlerTx) use() error {
	if !t.mu.TryLock() {
		return errTxInUse
	}
	if t.closed {
		t.mu.Unlock()
		return ErrTxClosed
	}
	return nil
}

func (t *handlerTx) done(err error) {
	t.note(err)
	t.mu.Unlock()
}

// sends notes that a text is about to be sent.
func (t *handlerTx) sends(sql string) {
	t.session |= sessionOf(sql)
	t.controls = t.controls || endsTransaction(sql)
}

// follow looks, where the connection is idle, whether the handler has ended the
// transaction. It cannot be told later, if the handler begins another one, commits
// that, and one more of it fails: that ours was rolled back is then true as well.
func (t *handlerTx) follow() {
	pg := t.conn.PgConn()
	if t.left || !t.fenced.begun || pg.IsClosed() || pg.IsBusy() {
		return
	}
	switch pg.TxStatus() {
	case noTransaction:
		t.left = true
	case inTransaction:
		if t.controls && t.fenced.xid != nil {
			t.left = !within(t.conn, *t.fenced.xid)
		}
		t.controls = false
	}
}

func (t *handlerTx) note(err error) {
	t.follow()
	pg, is := inert.As[*pgconn.PgError](err) // an argument's method may have returned it
	if !is {
		return
	}
	if t.failed == nil {
		t.failed = err
	}
	if pg.Code != codeAborted {
		t.last = pg
	}
	if blameless(pg) != nil {
		t.shrug = append(t.shrug[max(0, len(t.shrug)-maxShrug):], pg)
	}
	if outlives(pg) {
		t.session |= changes
	}
}

// maxShrug bounds what a handler that goes on from savepoints makes us remember.
const maxShrug = 16

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := t.use(); err != nil {
		return tag, err
	}
	defer func() { t.done(err) }()
	t.sends(sql)
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
	if err := t.use(); err != nil {
		return failedRows{err: err}, err
	}
	defer func() { t.done(err) }()
	t.sends(sql)
	r, err := t.begin(ctx, along(sql, args)...)
	if err != nil {
		return failedRows{err: err}, err
	}
	if r != nil {
		inner, err := r.Query()
		if err != nil {
			_ = r.Close()
		}
		return &rows{tx: t, inner: inner, batch: r}, err
	}
	inner, err := t.conn.Query(ctx, sql, args...)
	return &rows{tx: t, inner: inner}, err
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.use(); err != nil {
		return failedRow{err}
	}
	defer t.done(nil)
	t.sends(sql)
	r, err := t.begin(ctx, along(sql, args)...)
	if err != nil {
		return failedRow{err}
	}
	if r != nil {
		return &row{tx: t, inner: r.QueryRow(), batch: r}
	}
	return &row{tx: t, inner: t.conn.QueryRow(ctx, sql, args...)}
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.use(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.done(nil)
	for _, q := range b.QueuedQueries {
		t.sends(q.SQL)
	}
	r, err := t.begin(ctx, b.QueuedQueries...)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	if r == nil {
		r = t.conn.SendBatch(ctx, b)
	}
	return &batchResults{tx: t, inner: r}
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (n int64, err error) {
	if err := t.use(); err != nil {
		return 0, err
	}
	defer func() { t.done(err) }()
	if _, err := t.begin(ctx); err != nil {
		return 0, err
	}
	return copyFrom(ctx, t.conn, table, columns, rows)
}
