// Package locktest plays the histories of work under a lock with effects in SQLite and PostgreSQL. The
// tests of each driver play them with effects in memory (leasetest.Run): they must not import the
// drivers of these databases, which whoever uses the driver would download (internal/mutation).
package locktest

import (
	"context"
	"database/sql"
	"log/slog"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestLocks(t *testing.T) {
	for name, leases := range map[string]func(testing.TB) castest.Rig{
		"leases in memory": ofMemory, "leases in NATS": ofNATS, "leases in PostgreSQL": ofPostgreSQL,
	} {
		t.Run(name+", effects in SQLite", func(t *testing.T) {
			t.Parallel()
			leasetest.RunLocks(t, leases, inSQLite)
		})
		t.Run(name+", effects in PostgreSQL", func(t *testing.T) {
			t.Parallel()
			leasetest.RunLocks(t, leases, inPostgreSQL)
		})
	}
}

func ofMemory(testing.TB) castest.Rig {
	s := memstore.New()
	return castest.Rig{
		Open:   func(testing.TB, func(string) string) cas.Store { return s },
		Backup: func(testing.TB) func() { return s.Backup() },
	}
}

func ofNATS(t testing.TB) castest.Rig {
	const bucket = "locks"
	s := natstest.Start(t)
	js := s.JetStream(t)
	return castest.Rig{
		Open: func(t testing.TB, _ func(string) string) cas.Store {
			store, err := natsstore.Open(t.Context(), s.JetStream(t), natsstore.Options{Bucket: bucket})
			check(t, err)
			return store
		},
		Backup: func(t testing.TB) func() {
			b, err := natstest.TakeBackup(t.Context(), js.Conn(), "KV_"+bucket)
			check(t, err)
			return func() {
				check(t, js.DeleteKeyValue(t.Context(), bucket))
				check(t, b.Restore(t.Context(), js.Conn()))
			}
		},
	}
}

func ofPostgreSQL(t testing.TB) castest.Rig {
	db := pgtest.Start(t)
	admin := db.Superuser(t)
	check(t, pgsink.Migrate(t.Context(), admin, pgsink.Options{}))
	return castest.Rig{
		Open: func(t testing.TB, _ func(string) string) cas.Store {
			pool, err := pgxpool.New(t.Context(), db.URL)
			check(t, err)
			t.Cleanup(pool.Close)
			store, err := pgstore.Open(t.Context(), pool, pgstore.Options{})
			check(t, err)
			return store
		},
		Backup: func(t testing.TB) func() {
			_, err := admin.Exec(t.Context(), `create table saved as select * from epochfence.cas_item;
				create table saved_number as select last_value from epochfence.cas_number`)
			check(t, err)
			return func() { // at once, as members write meanwhile
				_, err := admin.Exec(t.Context(), `do $$ begin
					truncate epochfence.cas_item;
					insert into epochfence.cas_item select * from saved;
					perform setval('epochfence.cas_number', (select last_value from saved_number));
				end $$`)
				check(t, err)
			}
		},
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
