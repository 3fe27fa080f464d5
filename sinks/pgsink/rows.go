package pgsink

import (
	"cmp"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file keeps the results of a handler's queries from being used after it has returned, or
// while the connection is in use.

// rows locks the connection while it reads, and stops when the handler has returned.
type rows struct {
	tx    *handlerTx
	inner pgx.Rows
	batch pgx.BatchResults // closed with the rows, if they came with the statements that began the transaction
	did   func()           // nil, or what to call when the statement was executed
	err   error            // of closing batch
	wrong error            // Next or Close was called too late, or while the connection was in use
}

func (r *rows) Next() bool {
	if r.wrong = r.tx.take(); r.wrong != nil {
		return false
	}
	defer r.tx.mu.Unlock()
	more := r.inner.Next()
	if !more {
		r.end()
	}
	return more
}

func (r *rows) end() {
	if r.batch != nil {
		r.err = r.batch.Close()
		r.batch = nil
	}
	err := cmp.Or(r.inner.Err(), r.err)
	if err == nil && r.did != nil {
		r.did()
	}
	r.tx.note(err)
}

func (r *rows) Close() {
	if err := r.tx.take(); err != nil {
		if errors.Is(err, errTxInUse) {
			r.wrong = err
		}
		return
	}
	defer r.tx.mu.Unlock()
	r.inner.Close()
	r.end()
}

func (r *rows) Err() error {
	if r.wrong != nil {
		return r.wrong
	}
	return cmp.Or(r.inner.Err(), r.err)
}

func (r *rows) CommandTag() pgconn.CommandTag                { return r.inner.CommandTag() }
func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return r.inner.FieldDescriptions() }
func (r *rows) Scan(dest ...any) error                       { return r.inner.Scan(dest...) }
func (r *rows) Values() ([]any, error)                       { return r.inner.Values() }
func (r *rows) RawValues() [][]byte                          { return r.inner.RawValues() }
func (r *rows) Conn() *pgx.Conn                              { return nil }
func (r *rows) TypeMap() *pgtype.Map                         { return r.inner.TypeMap() }

type row struct {
	tx    *handlerTx
	inner pgx.Row
	batch pgx.BatchResults
	did   func() // nil, or what to call when the statement was executed
}

func (r *row) Scan(dest ...any) error {
	if err := r.tx.take(); err != nil {
		return err
	}
	defer r.tx.mu.Unlock()
	err := r.inner.Scan(dest...)
	if r.batch != nil {
		err = cmp.Or(err, r.batch.Close())
	}
	if _, failed := inert.As[*pgconn.PgError](err); !failed && r.did != nil {
		r.did()
	}
	r.tx.note(err)
	return err
}

type batchResults struct {
	tx        *handlerTx
	inner     pgx.BatchResults
	callbacks []func(pgx.BatchResults) error // by query; nil if a query has none
	next      int
}

func (r *batchResults) Exec() (tag pgconn.CommandTag, err error) {
	if err := r.tx.use(); err != nil {
		return tag, err
	}
	defer func() { r.tx.done(err) }()
	r.next++
	return r.inner.Exec()
}

func (r *batchResults) Query() (_ pgx.Rows, err error) {
	if err := r.tx.use(); err != nil {
		return failedRows{err: err}, err
	}
	defer func() { r.tx.done(err) }()
	r.next++
	inner, err := r.inner.Query()
	return &rows{tx: r.tx, inner: inner}, err
}

func (r *batchResults) QueryRow() pgx.Row {
	if err := r.tx.use(); err != nil {
		return failedRow{err}
	}
	defer r.tx.done(nil)
	r.next++
	return &row{tx: r.tx, inner: r.inner.QueryRow()}
}

// Close calls the callbacks of the results that were not read, as pgx does, and closes.
func (r *batchResults) Close() (err error) {
	for err == nil && r.next < len(r.callbacks) {
		if call := r.callbacks[r.next]; call != nil {
			err = call(r)
		} else {
			_, err = r.Exec()
		}
	}
	if use := r.tx.use(); use != nil {
		return cmp.Or(err, use)
	}
	closed := r.inner.Close()
	r.tx.done(closed)
	return cmp.Or(err, closed)
}

// Tx returns nil, because a handler must not end the transaction.
func (r *batchResults) Tx() pgx.Tx { return nil }

// failedRows and failedRow are the results of a query that was not sent.
type failedRows struct{ err error }

func (r failedRows) Close()                                       {}
func (r failedRows) Err() error                                   { return r.err }
func (r failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                            { return r.err }
func (r failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r failedRows) RawValues() [][]byte                          { return nil }
func (r failedRows) Conn() *pgx.Conn                              { return nil }
func (r failedRows) TypeMap() *pgtype.Map                         { return nil }

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }
