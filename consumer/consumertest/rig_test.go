package consumertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file lets one handler run on both databases.

// db is a transaction or a database. Statements have $1, as both databases know.
type db struct {
	exec func(ctx context.Context, text string, args ...any) (int64, error)
	one  func(ctx context.Context, text string, args ...any) (int64, error)
}

func (d db) must(ctx context.Context, text string, args ...any) { // for what the handlers under test ignore
	_, _ = d.exec(ctx, text, args...)
}

func onSQL(q interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) db {
	return db{
		func(ctx context.Context, text string, args ...any) (int64, error) {
			r, err := q.ExecContext(ctx, strings.ReplaceAll(text, "$", "?"), args...)
			if err != nil {
				return 0, err
			}
			return r.RowsAffected()
		},
		func(ctx context.Context, text string, args ...any) (n int64, err error) {
			err = q.QueryRowContext(ctx, strings.ReplaceAll(text, "$", "?"), args...).Scan(&n)
			return n, err
		},
	}
}

func onPostgres(q pgsink.Tx) db {
	return db{
		func(ctx context.Context, text string, args ...any) (int64, error) {
			tag, err := q.Exec(ctx, text, args...)
			return tag.RowsAffected(), err
		},
		func(ctx context.Context, text string, args ...any) (n int64, err error) {
			err = q.QueryRow(ctx, text, args...).Scan(&n)
			return n, err
		},
	}
}

// handlers are those of one case, for any transaction.
type handlers struct {
	each   func(ctx context.Context, tx db, m consumer.Message, e epoch.Epoch) error
	batch  func(ctx context.Context, tx db, ms []consumer.Message) error
	failed func(ctx context.Context, tx db, m consumer.Message) error
}

func handlersOn[TX any](h handlers, wrap func(TX) db) consumer.Handlers[TX] {
	var c consumer.Handlers[TX]
	if h.batch != nil {
		c = consumer.Batches(func(ctx context.Context, tx TX, ms []consumer.Message, _ epoch.Epoch) error {
			return h.batch(ctx, wrap(tx), ms)
		})
	} else {
		c = consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
			return h.each(ctx, wrap(tx), m, e)
		})
	}
	if h.failed != nil {
		c = c.OnFailure(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch, _ error) error {
			return h.failed(ctx, wrap(tx), m)
		})
	}
	return c
}

// recorder keeps what a Check reports.
type recorder struct {
	testing.TB
	texts []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.texts = append(r.texts, fmt.Sprintf(format, args...))
}

const tables = `
	CREATE TABLE stock (item TEXT PRIMARY KEY, present INTEGER NOT NULL, price INTEGER NOT NULL DEFAULT 3, worth INTEGER GENERATED ALWAYS AS (present * price) STORED);
	INSERT INTO stock (item, present) VALUES ('chair', 100), ('table', 100), ('lamp', 2);
	CREATE TABLE sales (id SERIAL, item TEXT NOT NULL, place BIGINT NOT NULL, note TEXT, at TIMESTAMPTZ DEFAULT CURRENT_TIMESTAMP);
	CREATE TABLE parts (sale INTEGER REFERENCES sales (id), part INTEGER NOT NULL);
	CREATE TABLE totals (name TEXT PRIMARY KEY, n BIGINT NOT NULL, note TEXT);
	CREATE TABLE seen (place BIGINT PRIMARY KEY);
	CREATE TABLE changes (item TEXT, was INTEGER, became INTEGER);
	`

var forSQLite = strings.NewReplacer("SERIAL", "INTEGER PRIMARY KEY AUTOINCREMENT", "TIMESTAMPTZ", "TEXT")

// database is one of the two, with a handler's own connection to it.
type database struct {
	other db
	check func(t testing.TB, h handlers, ms []consumer.Message, o consumertest.Options)
}

func newSQLite(t testing.TB) database {
	d, _, _ := openSQLite(t)
	return d
}

func openSQLite(t testing.TB) (database, *sqlsink.Sink, *sql.DB) {
	path := filepath.Join(t.TempDir(), "app.db") + "?_pragma=journal_mode(wal)&_pragma=foreign_keys(1)&_pragma=busy_timeout(50)&_pragma=synchronous(off)"
	open, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Close() })
	if _, err := open.Exec(forSQLite.Replace(tables) + `
		CREATE TRIGGER changed AFTER UPDATE ON stock WHEN new.price <> old.price BEGIN INSERT INTO changes VALUES (new.item, old.price, new.price); END`); err != nil {
		t.Fatal(err)
	}
	if err := sqlsink.Migrate(t.Context(), open, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), open, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return database{onSQL(open), func(t testing.TB, h handlers, ms []consumer.Message, o consumertest.Options) {
		consumertest.Check(t, sink, handlersOn(h, func(tx *sqlsink.Tx) db { return onSQL(tx) }), ms, consumertest.SQLite(open), o)
	}}, sink, open
}

func newPostgres(t testing.TB) database {
	pool, sink := openPostgres(t, pgtest.Start(t).URL)
	other := db{
		func(ctx context.Context, text string, args ...any) (int64, error) {
			tag, err := pool.Exec(ctx, text, args...)
			return tag.RowsAffected(), err
		},
		func(ctx context.Context, text string, args ...any) (n int64, err error) {
			err = pool.QueryRow(ctx, text, args...).Scan(&n)
			return n, err
		},
	}
	return database{other, func(t testing.TB, h handlers, ms []consumer.Message, o consumertest.Options) {
		consumertest.Check(t, sink, handlersOn(h, onPostgres), ms, pgtables.Of(pool), o)
	}}
}

func openPostgres(t testing.TB, url string) (*pgxpool.Pool, *pgsink.Sink) {
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), regexp.MustCompile(`id SERIAL`).ReplaceAllString(tables, "id SERIAL PRIMARY KEY")+`
		CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO changes VALUES (new.item, old.price, new.price); RETURN NULL; END';
		CREATE TRIGGER changed AFTER UPDATE ON stock FOR EACH ROW WHEN (new.price <> old.price) EXECUTE FUNCTION changed()`); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = pgsink.Migrate(t.Context(), conn.Conn(), pgsink.Options{})
	conn.Release()
	if err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return pool, sink
}
