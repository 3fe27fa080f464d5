// Package sqlsinktest has sqlsink's databases for the suites of sinktest, with any driver.
package sqlsinktest

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// Kind is a dialect with the table of the suites' effects.
type Kind struct {
	sqlsink.Dialect
	table, lock, unlock string
}

var (
	// SQLite has a lock for all writers.
	SQLite = Kind{sqlsink.SQLite, `CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, list TEXT NOT NULL, value TEXT NOT NULL) STRICT;
		CREATE INDEX effects_list ON effects (list)`, `BEGIN IMMEDIATE`, `ROLLBACK`}

	// MariaDB locks the table.
	MariaDB = Kind{sqlsink.MariaDB, `CREATE TABLE effects (id BIGINT PRIMARY KEY AUTO_INCREMENT, list VARBINARY(4096) NOT NULL, value VARBINARY(4096) NOT NULL, KEY (list(100)))`,
		`LOCK TABLES effects WRITE`, `UNLOCK TABLES`}
)

// Create creates the table of effects and the sink's in an empty database.
func (k Kind) Create(t testing.TB, db *sql.DB) {
	t.Helper()
	Exec(t, db, strings.Split(k.table, ";")...)
	if err := sqlsink.Migrate(t.Context(), db, k.Dialect, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
}

// Sink opens a sink.
func (k Kind) Sink(t testing.TB, db *sql.DB, o sqlsink.Options) *sqlsink.Sink {
	t.Helper()
	s, err := sqlsink.Open(t.Context(), db, k.Dialect, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Operator opens an operator.
func (k Kind) Operator(t testing.TB, db *sql.DB) operate.Operator {
	t.Helper()
	op, err := sqlsink.OpenOperator(t.Context(), db, k.Dialect, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// Database is the database that open opens with connections of their own, until t ends.
func (k Kind) Database(t testing.TB, open func(t testing.TB) *sql.DB) sinktest.Database[*sqlsink.Tx] {
	t.Helper()
	reader := open(t)
	operator := sync.OnceValue(func() operate.Operator { return k.Operator(t, open(t)) }) // idioms ask for it all the time
	return sinktest.Database[*sqlsink.Tx]{
		Open:   func(t testing.TB) epoch.Sink[*sqlsink.Tx] { return k.Sink(t, open(t), sqlsink.Options{}) },
		Append: Append,
		List:   func(ctx context.Context, list string) ([]string, error) { return Effects(ctx, reader, list) },
		Commit: func(ctx context.Context, tx *sqlsink.Tx) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		},
		Lock: func(t testing.TB) (unlock func()) {
			db := open(t)
			db.SetMaxOpenConns(1)
			Exec(t, db, k.lock)
			return func() { Exec(t, db, k.unlock) }
		},
		Aside: func(ctx context.Context, query string) error {
			_, err := reader.ExecContext(ctx, query)
			return err
		},
		Operator:   func(testing.TB) operate.Operator { return operator() },
		DeadLetter: k.Sink(t, reader, sqlsink.Options{}).DeadLetter,
	}
}

// Append adds an effect.
func Append(ctx context.Context, tx *sqlsink.Tx, list, value string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (?, ?)`, list, value)
	return err
}

// Effects returns the effects of a list in their order.
func Effects(ctx context.Context, db *sql.DB, list string) (all []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT value FROM effects WHERE list = ? ORDER BY id`, list)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// Open opens a database with connections of its own, until t ends.
func Open(t testing.TB, driver, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Exec executes statements, which must succeed.
func Exec(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
