package pgsink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
)

// Tx is what a handler writes through: the interface that sqlc calls DBTX, for
// pgx/v5. It has no Commit and no Rollback, and neither has what is behind it,
// nor the connection of the Rows it returns; a handler that sends a COMMIT as
// SQL is found out ([epoch.ErrEscaped]). Savepoints are the handler's own.
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
	as   *advances
	conn *pgx.Conn

	mu     sync.Mutex // held while the connection is in use
	closed bool
	failed error // the first error of a statement
	leaked bool
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
	return !t.leaked && !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() == inTransaction
}

// blame is why the handler's work cannot be committed, where the handler
// returned err or did not leave the transaction ready.
func (t *handlerTx) blame(err error) error {
	pg := t.conn.PgConn()
	switch {
	case t.leaked:
		return errors.Join(errLeaked, err)
	case pg.IsClosed() || err != nil:
		return err
	case pg.IsBusy():
		return errOpen
	case pg.TxStatus() == noTransaction:
		return epoch.ErrEscaped
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

func (t *handlerTx) note(err error) {
	var pg *pgconn.PgError
	if t.failed == nil && errors.As(err, &pg) {
		t.failed = err
	}
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := t.use(); err != nil {
		return tag, err
	}
	defer func() { t.done(err) }()
	return t.conn.Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (_ pgx.Rows, err error) {
	if err := t.use(); err != nil {
		return failedRows{err: err}, err
	}
	defer func() { t.done(err) }()
	r, err := t.conn.Query(ctx, sql, args...)
	return &rows{tx: t, inner: r}, err
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.use(); err != nil {
		return failedRow{err}
	}
	defer t.done(nil)
	return &row{tx: t, inner: t.conn.QueryRow(ctx, sql, args...)}
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.use(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.done(nil)
	return &batchResults{tx: t, inner: t.conn.SendBatch(ctx, b)}
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (n int64, err error) {
	if err := t.use(); err != nil {
		return 0, err
	}
	defer func() { t.done(err) }()
	return t.conn.CopyFrom(ctx, table, columns, rows)
}
