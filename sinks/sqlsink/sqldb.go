package sqlsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/epochfence/epochfence/internal/txdb"
)

// OpenDB returns a handler's transaction as a [sql.DB], for gorm, ent, bun, sqlx and
// whatever else asks for more than a [Tx] has. What they write is committed with the
// fence. Begin sets a savepoint, and Commit and Rollback of what it returns release it or
// go back to it.
//
// Close it before the handler returns.
func OpenDB(tx *Tx) *sql.DB { return txdb.Open(sqlTx{tx}, new(txdb.Savepoints)) }

type sqlTx struct{ tx *Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return t.tx.ExecContext(ctx, query, values(args)...)
}

func (t sqlTx) Query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	r, err := t.tx.QueryContext(ctx, query, values(args)...) //nolint:rowserrcheck // sqlRows.Next asks
	if err != nil {
		return nil, err
	}
	names, err := r.Columns()
	if err != nil {
		_ = r.Close() //nolint:sqlclosecheck // otherwise whoever reads them closes them
		return nil, err
	}
	return &sqlRows{Rows: r, names: names}, nil
}

func (t sqlTx) Savepoint(ctx context.Context, name string) error {
	_, err := t.tx.ExecContext(ctx, "SAVEPOINT "+name)
	return err
}

func (t sqlTx) Release(name string) error {
	_, err := t.tx.ExecContext(context.Background(), "RELEASE SAVEPOINT "+name)
	return err
}

func (t sqlTx) RollbackTo(name string) error {
	_, err := t.tx.ExecContext(context.Background(), "ROLLBACK TO SAVEPOINT "+name)
	return errors.Join(err, t.Release(name))
}

func values(args []driver.NamedValue) []any {
	vs := make([]any, len(args))
	for i, a := range args {
		vs[i] = a.Value
		if a.Name != "" {
			vs[i] = sql.Named(a.Name, a.Value)
		}
	}
	return vs
}

// sqlRows are rows as a driver has them.
type sqlRows struct {
	*sql.Rows
	names []string
}

func (r *sqlRows) Columns() []string { return r.names }

func (r *sqlRows) Next(dest []driver.Value) error {
	if !r.Rows.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	row, into := make([]any, len(dest)), make([]any, len(dest))
	for i := range row {
		into[i] = &row[i]
	}
	err := r.Scan(into...)
	for i, v := range row {
		dest[i] = v
	}
	return err
}
