package sqlsink_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestIdioms(t *testing.T) {
	t.Parallel()
	empty := emptyFile(t)
	direct := idiomatic("sqlsink", empty)
	direct.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}
	direct.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(tx.QueryContext(ctx, query))
	}
	db := idiomatic("sqlsink.OpenDB", empty)
	db.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := sqlsink.OpenDB(tx).ExecContext(ctx, query, args...)
		return err
	}
	db.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(sqlsink.OpenDB(tx).QueryContext(ctx, query))
	}
	db.DB, db.Plays = sqlsink.OpenDB, sinktest.HandlesAlone
	sinktest.Idioms(t, direct, db)
}

// emptyFile is what a file is with all tables. A copy is quicker than the statements.
func emptyFile(t *testing.T) []byte {
	file := filepath.Join(t.TempDir(), "empty.db")
	db, err := sql.Open("sqlite", dsn(file))
	if err != nil {
		t.Fatal(err)
	}
	sqlsinktest.SQLite.Create(t, db)
	mustExec(t, db, inSQLite.Setup)
	if err := db.Close(); err != nil { // which leaves all of it in this file
		t.Fatal(err)
	}
	bytes, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func idiomatic(mode string, empty []byte) sinktest.Idiomatic[*sqlsink.Tx] {
	return sinktest.Idiomatic[*sqlsink.Tx]{
		Mode: mode, Speaks: inSQLite,
		Database: func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
			file := filepath.Join(t.TempDir(), "app.db")
			if err := os.WriteFile(file, empty, 0o600); err != nil {
				t.Fatal(err)
			}
			return databaseOf(t, file)
		},
	}
}

// sqlRows are rows whose Close says nothing.
type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close() { _ = r.Rows.Close() }

func queried(rows *sql.Rows, err error) (sinktest.Rows, error) {
	if err != nil {
		return nil, err
	}
	return sqlRows{rows}, nil
}
