package sqltx

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// This file passes the rows of a query on to the handler, so that guard.go sees their errors and
// call.go can close what a handler leaves open.

// callRows are the rows of a call. Guard.judge sees their errors, and they are closed with the
// call.
type callRows struct {
	c     *Call
	text  string
	inner *sql.Rows
	names []string
	types []*sql.ColumnType // nil before somebody asks

	row, into []any // the values of a row, and pointers to them

	read [][]any // what is left of the rows, if they were read at once
	all  bool    // they were
}

func (r *callRows) open() (err error) {
	if r.names, err = r.inner.Columns(); err != nil {
		_ = r.inner.Close()
		return err
	}
	if r.c.g.b.d.OneByOne() {
		return r.readAll()
	}
	if r.c.rows == nil {
		r.c.rows = map[*callRows]struct{}{}
	}
	r.c.rows[r] = struct{}{}
	return nil
}

// readAll reads and closes the rows, so that the connection can take the next statement.
func (r *callRows) readAll() error {
	r.all = true
	r.types, _ = r.inner.ColumnTypes()
	for r.inner.Next() {
		row, into := make([]any, len(r.names)), make([]any, len(r.names))
		for i := range row {
			into[i] = &row[i]
		}
		if err := r.inner.Scan(into...); err != nil {
			return errors.Join(err, r.inner.Close())
		}
		r.read = append(r.read, row)
	}
	return errors.Join(r.inner.Err(), r.inner.Close())
}

// close is Close with the lock held.
func (r *callRows) close() error {
	delete(r.c.rows, r)
	if r.all {
		r.read = nil
		return nil
	}
	return r.c.g.judge(r.text, r.inner.Close())
}

func (r *callRows) Columns() []string { return r.names }

func (r *callRows) Close() error {
	if err := r.c.lock(r.c.ctx); err != nil {
		return err
	}
	defer r.c.g.mu.unlock()
	if r.c.ended {
		return nil // it is closed
	}
	return r.close()
}

func (r *callRows) Next(dest []driver.Value) error {
	if err := r.c.lock(r.c.ctx); err != nil {
		return err
	}
	defer r.c.g.mu.unlock()
	if err := r.c.usable(); err != nil {
		return err
	}
	if r.all {
		if len(r.read) == 0 {
			return io.EOF
		}
		for i, v := range r.read[0] {
			dest[i] = v
		}
		r.read = r.read[1:]
		return nil
	}
	if !r.inner.Next() {
		if err := r.inner.Err(); err != nil {
			return r.c.g.judge(r.text, err)
		}
		return io.EOF
	}
	if r.into == nil {
		r.row, r.into = make([]any, len(dest)), make([]any, len(dest))
		for i := range r.row {
			r.into[i] = &r.row[i]
		}
	}
	err := r.inner.Scan(r.into...)
	for i, v := range r.row {
		dest[i] = v
	}
	return r.c.g.judge(r.text, err)
}

func (r *callRows) column(i int) *sql.ColumnType {
	if r.types == nil {
		r.types, _ = r.inner.ColumnTypes()
	}
	if i >= len(r.types) {
		return nil
	}
	return r.types[i]
}

func (r *callRows) ColumnTypeDatabaseTypeName(i int) string {
	if c := r.column(i); c != nil {
		return c.DatabaseTypeName()
	}
	return ""
}

func (r *callRows) ColumnTypeScanType(i int) reflect.Type {
	if c := r.column(i); c != nil && c.ScanType() != nil {
		return c.ScanType()
	}
	return reflect.TypeFor[any]()
}

func (r *callRows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if c := r.column(i); c != nil {
		return c.Nullable()
	}
	return false, false
}

func (r *callRows) ColumnTypeLength(i int) (length int64, ok bool) {
	if c := r.column(i); c != nil {
		return c.Length()
	}
	return 0, false
}

func (r *callRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if c := r.column(i); c != nil {
		return c.DecimalSize()
	}
	return 0, 0, false
}
