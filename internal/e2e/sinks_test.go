package e2e_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A message's effect is a row in a table effects, in the order of their
// application.

// onSQLite is a database in a file.
type onSQLite struct {
	testing.TB
	db   *sql.DB
	sink *sqlsink.Sink
}

func newSQLite(t testing.TB) *onSQLite {
	t.Helper()
	file := url.URL{Scheme: "file", Opaque: filepath.Join(t.TempDir(), "app.db"), RawQuery: "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"}
	db, err := sql.Open("sqlite", file.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	db.SetMaxOpenConns(1) // limits that a test sets are those of a connection
	d := &onSQLite{TB: t, db: db}
	d.exec(`CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, value BLOB, headers BLOB) STRICT`)
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if d.sink, err = sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *onSQLite) exec(query string) {
	d.Helper()
	if _, err := d.db.ExecContext(d.Context(), query); err != nil {
		d.Fatalf("%s: %v", query, err)
	}
}

func (d *onSQLite) handle(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (key, value, headers) VALUES (?, ?, ?)`, m.Key, m.Value, headerBytes(m))
	return err
}

func (d *onSQLite) applied() []effect {
	d.Helper()
	rows, err := d.db.QueryContext(d.Context(), `SELECT key, value, headers FROM effects ORDER BY n`)
	if err != nil {
		d.Fatal(err)
	}
	defer rows.Close()
	var all []effect
	for rows.Next() {
		var key, value, headers []byte
		if err := rows.Scan(&key, &value, &headers); err != nil {
			d.Fatal(err)
		}
		all = append(all, effect{string(key), string(value), string(headers)})
	}
	if err := rows.Err(); err != nil {
		d.Fatal(err)
	}
	return all
}

// dead returns the only dead letter.
func (d *onSQLite) dead() (e effect, cause string) {
	d.Helper()
	var key, value []byte
	var text string
	err := d.db.QueryRowContext(d.Context(), `SELECT message_key, message_value, coalesce(message_headers, '[]'), cause FROM epochfence_ledger WHERE kind = 'dead-letter'`).Scan(&key, &value, &text, &cause)
	if err != nil {
		d.Fatal(err)
	}
	return effect{string(key), string(value), string(headersOf(d, text))}, cause
}

// headersOf are the headers of a dead letter, as effects have those of a message.
func headersOf(t testing.TB, text string) []byte {
	var headers []struct {
		Key      string
		KeyBytes []byte `json:"key_bytes"`
		Value    []byte
	}
	if err := json.Unmarshal([]byte(text), &headers); err != nil {
		t.Fatal(err)
	}
	var m consumer.Message
	for _, h := range headers {
		m.Headers = append(m.Headers, consumer.Header{Key: h.Key + string(h.KeyBytes), Value: h.Value})
	}
	return headerBytes(m)
}

// onPostgres is a database of its own, and a role that may do no more than an
// application needs.
type onPostgres struct {
	testing.TB
	db    *pgtest.Database
	admin *pgx.Conn
	role  string
	url   string // of the role
	pool  *pgxpool.Pool
	sink  *pgsink.Sink
}

// newPostgres has everything but the permission to use the sink.
func newPostgres(t testing.TB) *onPostgres {
	t.Helper()
	return postgresOn(t, pgtest.Start(t))
}

func postgresOn(t testing.TB, db *pgtest.Database) *onPostgres {
	t.Helper()
	d := &onPostgres{TB: t, db: db}
	d.admin = d.db.Superuser(t)
	d.role, d.url = d.db.Role(t)
	d.exec("create table effects (n bigint generated always as identity, key bytea, value bytea, headers bytea)")
	d.exec("grant select, insert on effects to " + d.role)
	if err := pgsink.Migrate(t.Context(), d.admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	d.pool = newPool(t, d.url)
	return d
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (d *onPostgres) open(ctx context.Context) (err error) {
	d.sink, err = pgsink.Open(ctx, d.pool, pgsink.Options{Logger: quiet()})
	return err
}

// granted lets the role use the sink, and opens one.
func (d *onPostgres) granted() *onPostgres {
	d.Helper()
	if err := pgsink.Grant(d.Context(), d.admin, d.role, pgsink.Options{}); err != nil {
		d.Fatal(err)
	}
	if err := d.open(d.Context()); err != nil {
		d.Fatal(err)
	}
	return d
}

func (d *onPostgres) exec(query string) {
	d.Helper()
	if _, err := d.admin.Exec(d.Context(), query); err != nil {
		d.Fatalf("%s: %v", query, err)
	}
}

// disconnect ends the application's connections.
func (d *onPostgres) disconnect() {
	d.Helper()
	d.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = '" + d.role + "'")
}

func (d *onPostgres) handle(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	_, err := tx.Exec(ctx, "insert into effects (key, value, headers) values ($1, $2, $3)", m.Key, m.Value, headerBytes(m))
	return err
}

func (d *onPostgres) applied() []effect {
	d.Helper()
	rows, err := d.admin.Query(d.Context(), "select key, value, headers from effects order by n")
	if err != nil {
		d.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (effect, error) {
		var key, value, headers []byte
		err := row.Scan(&key, &value, &headers)
		return effect{string(key), string(value), string(headers)}, err
	})
	if err != nil {
		d.Fatal(err)
	}
	return all
}

// dead returns the only dead letter.
func (d *onPostgres) dead() (e effect, cause string) {
	d.Helper()
	var key, value []byte
	var headers string
	err := d.admin.QueryRow(d.Context(), "select message_key, message_value, coalesce(message_headers, '[]'), cause from epochfence.fence_ledger where kind = 'dead-letter'").Scan(&key, &value, &headers, &cause)
	if err != nil {
		d.Fatal(err)
	}
	return effect{string(key), string(value), string(headersOf(d, headers))}, cause
}

// effect is what was stored of a message.
type effect struct{ key, value, headers string }

func headerBytes(m consumer.Message) []byte {
	var b []byte
	for _, h := range m.Headers {
		b = fmt.Appendf(b, "%q=%q;", h.Key, h.Value)
	}
	return b
}

// wantValues fails the test unless these values were applied, once each and in
// this order.
func wantValues(t testing.TB, applied []effect, want []string) {
	t.Helper()
	var got []string
	for _, e := range applied {
		got = append(got, e.value)
	}
	if !slices.Equal(got, want) {
		t.Errorf("applied %q, want %q", got, want)
	}
}
