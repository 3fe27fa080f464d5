package sqltx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

func TestADriverWhoseErrorsHaveNoCodeIsRefusedWithTheRemedy(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "app.db")+"?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := sqltx.SQLite.Settings(t.Context(), db); err != nil {
		t.Errorf("the driver as it is: %v", err)
	}
	codeless := txdb.Open(codeless{db: db})
	defer func() { _ = codeless.Close() }()
	if err := sqltx.SQLite.Settings(t.Context(), codeless); err == nil || !strings.Contains(err.Error(), "use modernc.org/sqlite") {
		t.Errorf("without the codes: %v", err)
	}
}

// codeless has errors that are nothing but a text.
type codeless struct {
	txdb.Tx // for what is not called
	db      *sql.DB
}

func (c codeless) Exec(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	r, err := c.db.ExecContext(ctx, query)
	if err != nil {
		return nil, errors.New(err.Error())
	}
	return r, nil
}

func (c codeless) Query(ctx context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	var v string
	if err := c.db.QueryRowContext(ctx, query).Scan(&v); err != nil {
		return nil, errors.New(err.Error())
	}
	return &one{v}, nil
}

// one is a row of one text.
type one struct{ v string }

func (*one) Columns() []string { return []string{"v"} }
func (*one) Close() error      { return nil }

func (o *one) Next(dest []driver.Value) error {
	if o.v == "" {
		return io.EOF
	}
	dest[0], o.v = o.v, ""
	return nil
}
