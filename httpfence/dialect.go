package httpfence

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/queue"
	"github.com/epochfence/epochfence/internal/sqliteschema"
	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Dialect is what differs between databases. [SQLite] and [PostgreSQL] are the
// ones there are.
//
// All statements use ? for parameters until bind has seen them. SAVEPOINT,
// RELEASE SAVEPOINT, COMMIT and ROLLBACK are everybody's.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// migrations are the schema's versions, 1 first, with {{prefix}} where
	// table names begin.
	migrations() []sqlschema.Migration

	// lockMigrations is run first in the transaction of a migration and makes
	// others wait for its end. Empty where begin does.
	lockMigrations() string

	// version is the schema's version, or 0 where there is no such table.
	version(ctx context.Context, q querier, table string) (int, error)

	// settings refuses a database whose settings do not fit.
	settings(ctx context.Context, q querier) error

	// bind gives parameters the names that the driver wants.
	bind(query string) string

	// turn names what a transaction of this scope excludes within a process.
	turn(scope string) string

	// begin opens a transaction that may write, in which a statement waits for
	// locks no longer than wait, and which is ended when nothing happens in it
	// for longer than idle.
	begin(wait, idle time.Duration) string

	// lockTimeout changes how long statements of the transaction wait for locks.
	lockTimeout(wait time.Duration) string

	// now is an expression for the time some time ago, which is its only
	// parameter, made by ago.
	now() string
	ago(age time.Duration) any

	// queue is the process's place among those that wait for the same lock.
	queue(ctx context.Context, q querier) (*queue.Queue, error)

	// busy reports that another transaction is in the way.
	busy(err error) bool

	// ends reports whether err, the answer to a statement on conn, has ended
	// the transaction in such a way that the next statement would be committed by itself.
	ends(conn *sql.Conn, err error) bool
}

// querier is a [sql.DB] or [sql.Conn].
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. A
// driver whose errors have a method Code() int that returns SQLite's result
// code will do as well.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return "SQLite" }
func (sqlite) migrations() []sqlschema.Migration {
	return sqlschema.Read(migrationFiles, "migrations/sqlite")
}
func (sqlite) lockMigrations() string   { return "" }
func (sqlite) bind(query string) string { return query }

// turn is one for all scopes: there is one write lock for the whole file.
func (sqlite) turn(string) string { return "" }

// begin takes the write lock at once. A deferred transaction takes it at its
// first write and can fail there, after reading, with SQLITE_BUSY_SNAPSHOT.
// https://www.sqlite.org/lang_transaction.html
func (sqlite) begin(_, _ time.Duration) string    { return `BEGIN IMMEDIATE` }
func (sqlite) lockTimeout(_ time.Duration) string { return "" }

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?)` }
func (sqlite) ago(age time.Duration) any {
	return fmt.Sprintf("-%.3f seconds", age.Seconds())
}

func (sqlite) version(ctx context.Context, q querier, table string) (int, error) {
	return sqliteschema.Version(ctx, q, table)
}

// settings insists on WAL: in the other modes a reader keeps a writer from
// committing, so that COMMIT itself would have to wait.
func (sqlite) settings(ctx context.Context, q querier) error {
	var mode string
	if err := q.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file's journal mode is %q; want WAL: add _pragma=journal_mode(WAL) to the data source name, on a local disk", mode)
	}
	return nil
}

// Result codes. https://www.sqlite.org/rescode.html
const (
	sqliteError  = 1
	sqliteBusy   = 5
	sqliteLocked = 6
)

func sqliteCode(err error) int {
	var e interface{ Code() int }
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff // the rest is the extended code
}

func (sqlite) queue(ctx context.Context, q querier) (*queue.Queue, error) { return queue.Open(ctx, q) }

func (sqlite) busy(err error) bool {
	code := sqliteCode(err)
	return code == sqliteBusy || code == sqliteLocked
}

// ends tries to begin a transaction, which SQLite refuses within one and without
// touching it. A full disk, an interrupt and some other errors roll back.
func (sqlite) ends(conn *sql.Conn, _ error) bool {
	_, err := conn.ExecContext(context.Background(), `BEGIN`)
	if err == nil {
		_, _ = conn.ExecContext(context.Background(), `ROLLBACK`)
	}
	return sqliteCode(err) != sqliteError
}

// PostgreSQL is PostgreSQL 14 or newer through github.com/jackc/pgx/v5/stdlib. Its
// tables are where the search_path of db leads. A driver whose errors have a method
// SQLState() string, and which takes several statements in one Exec without
// parameters, will do as well.
var PostgreSQL Dialect = postgres{}

type postgres struct{}

func (postgres) String() string { return "PostgreSQL" }
func (postgres) migrations() []sqlschema.Migration {
	return sqlschema.Read(migrationFiles, "migrations/postgres")
}
func (postgres) lockMigrations() string                      { return `SELECT pg_advisory_xact_lock(7308895159)` } // any number of our own
func (postgres) turn(scope string) string                    { return scope }
func (postgres) settings(_ context.Context, _ querier) error { return nil }
func (postgres) ends(*sql.Conn, error) bool                  { return false } // it stays open and refuses everything
func (postgres) now() string                                 { return `clock_timestamp() - make_interval(secs => ?)` }
func (postgres) ago(age time.Duration) any                   { return age.Seconds() }

func (postgres) bind(query string) string {
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

// begin asks for READ COMMITTED, whatever the default: a statement that has
// waited for a lock, and those after it, must see what its holder did.
func (d postgres) begin(wait, idle time.Duration) string {
	return fmt.Sprintf(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; %s; SET LOCAL idle_in_transaction_session_timeout = %d`,
		d.lockTimeout(wait), idle.Milliseconds())
}

func (postgres) lockTimeout(wait time.Duration) string {
	return fmt.Sprintf(`SET LOCAL lock_timeout = %d`, max(wait.Milliseconds(), 1))
}

// version does not ask to_regclass: within a transaction it can go on answering
// what it did before another migration, from a cache that nothing has brought up to
// date. Names without quotes are folded to lower case.
func (postgres) version(ctx context.Context, q querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = lower($1) AND pg_catalog.pg_table_is_visible(oid))`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM `+table).Scan(&v)
	return v, err
}

// queue has nothing to add: PostgreSQL's locks are granted in order.
func (postgres) queue(context.Context, querier) (*queue.Queue, error) { return &queue.Queue{}, nil }

// busy knows lock_not_available, deadlock_detected and serialization_failure.
func (postgres) busy(err error) bool {
	var e interface{ SQLState() string }
	if !errors.As(err, &e) {
		return false
	}
	switch e.SQLState() {
	case "55P03", "40P01", "40001":
		return true
	}
	return false
}
