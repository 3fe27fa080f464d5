// Package play is the program of package locktest. It is apart, because go mod tidy of a driver
// follows the tests of the packages that the driver's tests import.
package play

import (
	"context"
	"database/sql"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/suites/locktest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// The leases are in the store of a driver's test, or in memory.
func TestLocks(t *testing.T) {
	create := inMemory
	if at := os.Getenv(locktest.Env); at != "" {
		create = func(t testing.TB) castest.Rig { return locktest.Rig(t, at) }
	}
	leasetest.RunLocks(t, create, leasetest.At("SQLite", inSQLite), leasetest.At("PostgreSQL", inPostgreSQL))
}

func inMemory(testing.TB) castest.Rig {
	s := memstore.New()
	return castest.Rig{
		Open:   func(testing.TB, func(string) string) cas.Store { return s },
		Backup: func(testing.TB) func() { return s.Backup() },
	}
}

func inSQLite(t testing.TB) leasetest.Desk[*sqlsink.Tx] {
	file := url.URL{Scheme: "file", Opaque: filepath.Join(t.TempDir(), "app.db"), RawQuery: "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"}
	db, err := sql.Open("sqlite", file.String())
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), `create table report (line text not null) strict`)
	check(t, err)
	check(t, sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}))
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	check(t, err)
	return leasetest.Desk[*sqlsink.Tx]{
		Sink: sink,
		Write: func(ctx context.Context, tx *sqlsink.Tx, line string) error {
			_, err := tx.ExecContext(ctx, `insert into report values (?)`, line)
			return err
		},
		Lines: func(t testing.TB) (lines []string) {
			rows, err := db.QueryContext(t.Context(), `select line from report`)
			check(t, err)
			defer func() { check(t, rows.Close()) }()
			for rows.Next() {
				var line string
				check(t, rows.Scan(&line))
				lines = append(lines, line)
			}
			check(t, rows.Err())
			return lines
		},
		Excludes: true,
	}
}

func inPostgreSQL(t testing.TB) leasetest.Desk[pgsink.Tx] {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	check(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `create table report (line text not null)`)
	check(t, err)
	check(t, pgsink.Migrate(t.Context(), pool, pgsink.Options{}))
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	return leasetest.Desk[pgsink.Tx]{
		Sink: sink,
		Write: func(ctx context.Context, tx pgsink.Tx, line string) error {
			_, err := tx.Exec(ctx, `insert into report values ($1)`, line)
			return err
		},
		Lines: func(t testing.TB) []string {
			rows, err := pool.Query(t.Context(), `select line from report`)
			check(t, err)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			check(t, err)
			return lines
		},
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
