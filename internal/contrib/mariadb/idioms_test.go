package mariadb_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestIdioms(t *testing.T) {
	// So that what waits for itself waits for one second.
	dsn := newDatabase(t, mariatest.Start(t, "--innodb-lock-wait-timeout=1"))
	mustExec(t, open(t, dsn), strings.Split(inMariaDB.Setup, ";\n")...)
	mode := func(name string) sinktest.Idiomatic[*sqlsink.Tx] {
		return sinktest.Idiomatic[*sqlsink.Tx]{
			Mode: name, Speaks: inMariaDB,
			Database: func(t testing.TB) sinktest.Database[*sqlsink.Tx] { return databaseOf(t, dsn) },
		}
	}
	parameters := strings.NewReplacer("$1", "?", "$2", "?")
	direct, db := mode("sqlsink"), mode("sqlsink.OpenDB")
	direct.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, parameters.Replace(query), args...)
		return err
	}
	direct.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(tx.QueryContext(ctx, query))
	}
	db.Exec = func(ctx context.Context, tx *sqlsink.Tx, query string, args ...any) error {
		_, err := sqlsink.OpenDB(tx).ExecContext(ctx, parameters.Replace(query), args...)
		return err
	}
	db.Query = func(ctx context.Context, tx *sqlsink.Tx, query string) (sinktest.Rows, error) {
		return queried(sqlsink.OpenDB(tx).QueryContext(ctx, query))
	}
	db.DB, db.Plays = sqlsink.OpenDB, sinktest.HandlesAlone
	sinktest.Idioms(t, direct, db)
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
