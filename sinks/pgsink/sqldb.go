package pgsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file is the handle for database/sql, with the values of pgx's own stdlib. pgxtx.go decides
// what its transactions do.

// OpenDB returns a handler's transaction as a [sql.DB], for gorm, ent, bun, sqlx and other
// libraries on database/sql. What they write is committed with the fence. Values are those of
// pgx/v5/stdlib. Begin sets a savepoint. Commit and Rollback of the [sql.Tx] release it or go back
// to it. If a [sql.Tx] has not ended when the handler returns, or when the context of its Begin
// ends, the message fails. It also fails if the end of a [sql.Tx] would take back, or keep, what was
// written through another handle meanwhile: write through the Tx that was begun last, and end it first.
//
// Close the DB before the handler returns. Only one goroutine may use it at a time. Read rows to
// their end or close them before the next statement, because there is one connection behind the DB.
func OpenDB(tx Tx) *sql.DB { return txdb.Open(sqlTx{tx}) }

type sqlTx struct{ tx Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	values, err := positional(args)
	if err != nil {
		return nil, err
	}
	tag, err := t.tx.Exec(ctx, query, values...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

func (t sqlTx) Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	values, err := positional(args)
	if err != nil {
		return nil, err
	}
	r, err := t.tx.Query(ctx, query, append([]any{resultFormats}, values...)...)
	if err != nil {
		return nil, err
	}
	// The first Next shows the statement's error, in the simple protocol and in others. The caller
	// may never ask for a row.
	more := r.Next()
	if err := r.Err(); err != nil {
		r.Close()
		return nil, err
	}
	return &sqlRows{inner: r, ahead: true, more: more}, nil
}

func (t sqlTx) Begin(ctx context.Context, h txdb.Handle) error {
	return control{what: begin, handle: h}.do(ctx, t.tx)
}

func (t sqlTx) Commit(h txdb.Handle) error {
	return control{what: release, handle: h}.do(context.Background(), t.tx)
}

func (t sqlTx) Rollback(h txdb.Handle) error {
	return control{what: rollbackTo, handle: h}.do(context.Background(), t.tx)
}

func positional(args []driver.NamedValue) ([]any, error) {
	values := make([]any, len(args))
	for i, a := range args {
		if a.Name != "" {
			return nil, fmt.Errorf("pgsink: argument %q has a name: PostgreSQL's are $1, $2 and so on", a.Name)
		}
		values[i] = a.Value
	}
	return values, nil
}

// resultFormats are the types that come in binary. Other types come as text.
var resultFormats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: pgx.BinaryFormatCode, pgtype.ByteaOID: pgx.BinaryFormatCode,
	pgtype.Int2OID: pgx.BinaryFormatCode, pgtype.Int4OID: pgx.BinaryFormatCode, pgtype.Int8OID: pgx.BinaryFormatCode,
	pgtype.Float4OID: pgx.BinaryFormatCode, pgtype.Float8OID: pgx.BinaryFormatCode,
	pgtype.OIDOID: pgx.BinaryFormatCode, pgtype.XIDOID: pgx.BinaryFormatCode, pgtype.CIDOID: pgx.BinaryFormatCode,
	pgtype.DateOID: pgx.BinaryFormatCode, pgtype.TimestampOID: pgx.BinaryFormatCode, pgtype.TimestamptzOID: pgx.BinaryFormatCode,
}

type sqlRows struct {
	inner  pgx.Rows
	ahead  bool // inner.Next was called, and returned more
	more   bool
	decode []func(raw []byte) (driver.Value, error) // by column
}

func (r *sqlRows) Columns() []string {
	fields := r.inner.FieldDescriptions()
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

func (r *sqlRows) Close() error {
	r.inner.Close()
	return r.inner.Err()
}

func (r *sqlRows) Next(dest []driver.Value) error {
	if !r.ahead {
		r.more = r.inner.Next()
	}
	r.ahead = false
	if !r.more {
		if err := r.inner.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if r.decode == nil {
		for _, f := range r.inner.FieldDescriptions() {
			r.decode = append(r.decode, decoder(r.inner.TypeMap(), f))
		}
	}
	for i, raw := range r.inner.RawValues() {
		if dest[i] = nil; raw == nil {
			continue
		}
		var err error
		if dest[i], err = r.decode[i](raw); err != nil {
			return fmt.Errorf("pgsink: column %q: %w", r.inner.FieldDescriptions()[i].Name, err)
		}
	}
	return nil
}

func (r *sqlRows) ColumnTypeDatabaseTypeName(i int) string {
	f := r.inner.FieldDescriptions()[i]
	if t, ok := r.inner.TypeMap().TypeForOID(f.DataTypeOID); ok {
		return strings.ToUpper(t.Name)
	}
	return strconv.FormatUint(uint64(f.DataTypeOID), 10)
}

func decoder(m *pgtype.Map, f pgconn.FieldDescription) func([]byte) (driver.Value, error) {
	switch f.DataTypeOID {
	case pgtype.BoolOID:
		return as[bool](m, f)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return as[int64](m, f)
	case pgtype.Float4OID, pgtype.Float8OID:
		return as[float64](m, f)
	case pgtype.ByteaOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
		return as[[]byte](m, f)
	case pgtype.OIDOID, pgtype.XIDOID, pgtype.CIDOID:
		return through[pgtype.Uint32](m, f)
	case pgtype.DateOID:
		return through[pgtype.Date](m, f)
	case pgtype.TimestampOID:
		return through[pgtype.Timestamp](m, f)
	case pgtype.TimestamptzOID:
		return through[pgtype.Timestamptz](m, f)
	}
	return as[string](m, f)
}

func as[T any](m *pgtype.Map, f pgconn.FieldDescription) func([]byte) (driver.Value, error) {
	return func(raw []byte) (driver.Value, error) {
		var v T
		err := m.Scan(f.DataTypeOID, f.Format, raw, &v)
		return v, err
	}
}

// through returns what the type's own Value returns, which knows infinity.
func through[T driver.Valuer](m *pgtype.Map, f pgconn.FieldDescription) func([]byte) (driver.Value, error) {
	return func(raw []byte) (driver.Value, error) {
		var v T
		if err := m.Scan(f.DataTypeOID, f.Format, raw, &v); err != nil {
			return nil, err
		}
		return v.Value()
	}
}
