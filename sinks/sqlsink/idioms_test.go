package sqlsink_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestIdioms(t *testing.T) {
	t.Parallel()
	direct := idiomatic("sqlsink")
	direct.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}
	direct.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(tx.QueryContext(ctx, query))
	}
	db := idiomatic("sqlsink.OpenDB")
	db.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := sqlsink.OpenDB(tx).ExecContext(ctx, query, args...)
		return err
	}
	db.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(sqlsink.OpenDB(tx).QueryContext(ctx, query))
	}
	db.DB = sqlsink.OpenDB
	sinktest.Idioms(t, direct, db)
}

func idiomatic(mode string) sinktest.Idiomatic[*sqlsink.Tx] {
	return sinktest.Idiomatic[*sqlsink.Tx]{
		Mode: mode, Speaks: sinktest.SQLite,
		Database: func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
			file := newFile(t)
			mustExec(t, open(t, file), sinktest.SQLite.Setup)
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
