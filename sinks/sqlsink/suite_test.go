package sqlsink_test

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// dsn names a file as a process would open it. Synchronous off: the tests kill
// processes, not the machine.
func dsn(file string) string {
	return (&url.URL{Scheme: "file", Opaque: file, RawQuery: "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"}).String()
}

// open opens a file with connections of its own, until t ends.
func open(t testing.TB, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(file))
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

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// effectsTable is what handlers of these tests write to.
const effectsTable = `CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, list TEXT NOT NULL, value TEXT NOT NULL) STRICT;
	CREATE INDEX effects_list ON effects (list)`

// newFile makes a file with the sink's tables and one for effects.
func newFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.db")
	db := open(t, file)
	mustExec(t, db, effectsTable)
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	return file
}

func newSink(t testing.TB, db *sql.DB, o sqlsink.Options) *sqlsink.Sink {
	t.Helper()
	s, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func appendEffect(ctx context.Context, tx *sqlsink.Tx, list, value string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (?, ?)`, list, value)
	return err
}

func effects(ctx context.Context, db *sql.DB, list string) ([]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT value FROM effects WHERE list = ? ORDER BY id`, list)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

func TestSuite(t *testing.T)         { sinktest.Run(t, newDatabase) }
func TestSuiteOperated(t *testing.T) { sinktest.RunOperated(t, newDatabase) }

func newDatabase(t testing.TB) sinktest.Database[*sqlsink.Tx] {
	return databaseOf(t, newFile(t))
}

func databaseOf(t testing.TB, file string) sinktest.Database[*sqlsink.Tx] {
	reader := open(t, file)
	return sinktest.Database[*sqlsink.Tx]{
		Open: func(t testing.TB) epoch.Sink[*sqlsink.Tx] {
			return newSink(t, open(t, file), sqlsink.Options{})
		},
		Append: appendEffect,
		List: func(ctx context.Context, list string) ([]string, error) {
			return effects(ctx, reader, list)
		},
		Commit: func(ctx context.Context, tx *sqlsink.Tx) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		},
		Lock: func(t testing.TB) (unlock func()) {
			db := open(t, file)
			db.SetMaxOpenConns(1)
			mustExec(t, db, `BEGIN IMMEDIATE`)
			return func() { mustExec(t, db, `ROLLBACK`) }
		},
		Aside: func(ctx context.Context, query string) error {
			_, err := reader.ExecContext(ctx, query)
			return err
		},
		Operator:   func(t testing.TB) operate.Operator { return newOperator(t, open(t, file)) },
		DeadLetter: newSink(t, reader, sqlsink.Options{}).DeadLetter,
	}
}

func newOperator(t testing.TB, db *sql.DB) operate.Operator {
	t.Helper()
	op, err := sqlsink.OpenOperator(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// fileOf is the file that db has open.
func fileOf(t testing.TB, db *sql.DB) (file string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		t.Fatal(err)
	}
	return file
}
