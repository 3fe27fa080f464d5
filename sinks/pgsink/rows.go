package pgsink

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/internal/sql/txdb"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file keeps the results of a handler's queries from being used after it has returned, or
// while the connection is in use, and sends COPY: pgx's own would encode values on another
// goroutine, where a panic ends the process.

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

// end is for rows that were read to their end or closed: only then is the statement's error known.
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
	r.tx.passTurn()
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

// row is rows of at most one. pgx reads it in Scan, and until then the connection is busy.
type row struct {
	tx    *handlerTx
	inner pgx.Row
	batch pgx.BatchResults
	did   func() // nil, or what to call when the statement was executed
	read  func()
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
	r.read()
	r.tx.passTurn()
	return err
}

// batchResults locks the connection for each result. It makes the callbacks itself, so that they
// are given the rows of this file and never the connection.
type batchResults struct {
	tx        *handlerTx
	inner     pgx.BatchResults
	callbacks []func(pgx.BatchResults) error // by query; nil if a query has none
	next      int
	closed    func()
	over      bool  // it was closed
	err       error // of that
}

func (r *batchResults) Exec() (tag pgconn.CommandTag, err error) {
	if err := r.tx.use(context.Background()); err != nil {
		return tag, err
	}
	defer func() { r.tx.done(err) }()
	r.next++
	return r.inner.Exec()
}

func (r *batchResults) Query() (_ pgx.Rows, err error) {
	if err := r.tx.use(context.Background()); err != nil {
		return failedRows{err: err}, err
	}
	defer func() { r.tx.done(err) }()
	r.next++
	inner, err := r.inner.Query()
	return &rows{tx: r.tx, inner: inner}, err
}

func (r *batchResults) QueryRow() pgx.Row {
	if err := r.tx.use(context.Background()); err != nil {
		return failedRow{err}
	}
	defer r.tx.done(nil)
	r.next++
	return &row{tx: r.tx, inner: r.inner.QueryRow(), read: func() {}}
}

// Close calls the callbacks of the results that were not read, as pgx does, and closes.
func (r *batchResults) Close() (err error) {
	if r.over { // the turn may be another call's
		return r.err
	}
	for err == nil && r.next < len(r.callbacks) {
		if call := r.callbacks[r.next]; call != nil {
			err = call(r)
		} else {
			_, err = r.Exec()
		}
	}
	if use := r.tx.use(context.Background()); use != nil {
		return cmp.Or(err, use)
	}
	r.over, r.err = true, r.inner.Close()
	r.closed()
	r.tx.done(r.err)
	return cmp.Or(err, r.err)
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

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (n int64, err error) {
	if err := t.use(ctx); err != nil {
		return 0, err
	}
	defer func() { t.done(err) }()
	h := txdb.HandleOf(ctx)
	if err := t.savepoints.Use(h); err != nil {
		return 0, closedTo(h, err)
	}
	if err := t.fenced.stop(); err != nil {
		return 0, err
	}
	if t.conn.PgConn().IsBusy() { // before the first row is asked for, which may be another one of this connection
		return 0, errUnread
	}
	t.sent = true
	t.savepoints.Wrote(h)
	if _, err := t.begin(ctx); err != nil {
		return 0, err
	}
	return copyFrom(ctx, t.conn, table, columns, rows)
}

// copyFrom replaces pgx's CopyFrom, which calls the source of the rows and encodes their values
// on another goroutine: a panic of a value's method would end the process there. A source around
// the handler's could recover from a panic of its rows, and not from one of a value: pgx hands
// values to the codec of the column, which calls their methods and accepts no wrapper around
// them. So copyFrom does both on the handler's goroutine, where a panic is the handler's. The
// other goroutine only sends bytes.
func copyFrom(ctx context.Context, conn *pgx.Conn, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tracer, traced := conn.Config().Tracer.(pgx.CopyFromTracer)
	if traced {
		ctx = tracer.TraceCopyFromStart(ctx, conn, pgx.TraceCopyFromStartData{TableName: table, ColumnNames: columns})
	}
	tag, err := copyRows(ctx, conn, table, columns, rows)
	if traced {
		tracer.TraceCopyFromEnd(ctx, conn, pgx.TraceCopyFromEndData{CommandTag: tag, Err: err})
	}
	return tag.RowsAffected(), err
}

// errCopyAbandoned ends a COPY whose rows nobody sends any more, so that the server rolls it back.
var errCopyAbandoned = errors.New("the source of the rows panicked or ended its goroutine")

// copyRows sends the rows. The error of a row comes before the server's, which only repeats that
// the client has given up.
func copyRows(ctx context.Context, conn *pgx.Conn, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (tag pgconn.CommandTag, err error) {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = pgx.Identifier{c}.Sanitize()
	}
	into, list := table.Sanitize(), strings.Join(quoted, ", ")
	types, err := columnTypes(ctx, conn, "select "+list+" from "+into)
	if err != nil {
		return tag, fmt.Errorf("statement description failed: %w", err)
	}
	r, w := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		tag, err = conn.PgConn().CopyFrom(ctx, r, "copy "+into+" ( "+list+" ) from stdin binary;")
		_ = r.CloseWithError(io.ErrClosedPipe)
	}()
	failed := errCopyAbandoned
	func() {
		defer func() {
			_ = w.CloseWithError(inert.Error(failed)) // EOF if nil; its text goes to the server
			<-sent
		}()
		failed = encodeRows(w, conn.TypeMap(), types, rows)
	}()
	if err != nil {
		forgetColumnTypes(conn)
	}
	if failed != nil && !errors.Is(inert.Error(failed), io.ErrClosedPipe) {
		return tag, errors.Join(failed, err)
	}
	return tag, err
}

// copyBuffer is the number of bytes that pgconn sends at a time.
const copyBuffer = 65536 - 5

// encodeRows writes rows in COPY's binary format. Its error is of the rows, or of the pipe.
func encodeRows(w io.Writer, m *pgtype.Map, types []uint32, rows pgx.CopyFromSource) error {
	out := bufio.NewWriterSize(w, copyBuffer)
	_, _ = out.WriteString("PGCOPY\n\377\r\n\000\000\000\000\000\000\000\000\000")
	var buf []byte
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		if len(values) != len(types) {
			return fmt.Errorf("expected %d values, got %d values", len(types), len(values))
		}
		buf = binary.BigEndian.AppendUint16(buf[:0], uint16(len(types)))
		for i, v := range values {
			if buf, err = encodeValue(m, buf, types[i], v); err != nil {
				return err
			}
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return out.Flush()
}

// encodeValue appends v after its length. Like pgx, it goes by way of text if it has to.
func encodeValue(m *pgtype.Map, buf []byte, oid uint32, v any) ([]byte, error) {
	at := len(buf)
	null := append(buf, 0xff, 0xff, 0xff, 0xff)
	encoded, err := m.Encode(oid, pgtype.BinaryFormatCode, v, null)
	if err != nil {
		var failed error
		if encoded, failed = encodeText(m, null, oid, v); failed != nil {
			return nil, err
		}
	}
	if encoded == nil {
		return null, nil
	}
	binary.BigEndian.PutUint32(encoded[at:], uint32(len(encoded)-at-4))
	return encoded, nil
}

// encodeText encodes v by way of its text: a string for a column that is no text, for example.
func encodeText(m *pgtype.Map, buf []byte, oid uint32, v any) ([]byte, error) {
	text, is := v.(string)
	if !is {
		encoded, err := m.Encode(oid, pgtype.TextFormatCode, v, nil)
		if err != nil {
			return nil, err
		}
		text = string(encoded)
	}
	if t, known := m.TypeForOID(oid); known {
		if _, is := t.Codec.(*pgtype.ArrayCodec); is {
			var array pgtype.Array[any]
			if err := m.Scan(oid, pgtype.TextFormatCode, []byte(text), &array); err == nil {
				return m.Encode(oid, pgtype.BinaryFormatCode, array, buf)
			}
		}
	}
	var value any
	if err := m.Scan(oid, pgtype.TextFormatCode, []byte(text), &value); err != nil {
		return nil, err
	}
	return m.Encode(oid, pgtype.BinaryFormatCode, value, buf)
}

const maxColumnTypes = 128

// columnTypes caches a query's column types on the connection, in the modes in which pgx does.
func columnTypes(ctx context.Context, conn *pgx.Conn, query string) ([]uint32, error) {
	known, _ := conn.PgConn().CustomData()[columnTypesName].(map[string][]uint32)
	if types, is := known[query]; is {
		return types, nil
	}
	described, err := conn.PgConn().Prepare(ctx, "", query, nil)
	if err != nil {
		return nil, err
	}
	types := make([]uint32, len(described.Fields))
	for i, f := range described.Fields {
		types[i] = f.DataTypeOID
	}
	switch queryMode(conn) {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		if known == nil || len(known) >= maxColumnTypes {
			known = map[string][]uint32{}
			conn.PgConn().CustomData()[columnTypesName] = known
		}
		known[query] = types
	}
	return types, nil
}

const columnTypesName = "epochfence: types of columns for COPY"

// forgetColumnTypes follows a failed COPY, because a table may have changed.
func forgetColumnTypes(conn *pgx.Conn) { delete(conn.PgConn().CustomData(), columnTypesName) }
