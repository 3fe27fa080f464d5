package sqlsink_test

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
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
	return sqlsinktest.Open(t, "sqlite", dsn(file))
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// newFile makes a file with the sink's tables and one for effects.
func newFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.db")
	sqlsinktest.SQLite.Create(t, open(t, file))
	return file
}

func newSink(t testing.TB, db *sql.DB, o sqlsink.Options) *sqlsink.Sink {
	t.Helper()
	return sqlsinktest.SQLite.Sink(t, db, o)
}

var (
	appendEffect = sqlsinktest.Append
	effects      = sqlsinktest.Effects
)

func TestSuite(t *testing.T)         { t.Parallel(); sinktest.Run(t, newDatabase) }
func TestSuiteOperated(t *testing.T) { t.Parallel(); sinktest.RunOperated(t, newDatabase) }

func newDatabase(t testing.TB) sinktest.Database[*sqlsink.Tx] {
	return databaseOf(t, newFile(t))
}

func databaseOf(t testing.TB, file string) sinktest.Database[*sqlsink.Tx] {
	return sqlsinktest.SQLite.Database(t, func(t testing.TB) *sql.DB { return open(t, file) })
}

// fileOf is the file that db has open.
func fileOf(t testing.TB, db *sql.DB) (file string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		t.Fatal(err)
	}
	return file
}
