package sqloutbox_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "app.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func wantError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "sqloutbox: ") || !strings.Contains(err.Error(), says) {
		t.Errorf("err = %v, want one of sqloutbox that says %q", err, says)
	}
}

func TestOpenWantsTheTablesOfThisVersion(t *testing.T) {
	db := open(t)
	_, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	wantError(t, err, "run sqloutbox.Migrate")
	if err := sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO epochfence_outbox_migration (version, name) VALUES (99, 'of tomorrow')`); err != nil {
		t.Fatal(err)
	}
	_, err = sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	wantError(t, err, "update the program")
	wantError(t, sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}), "update the program")
	wantError(t, sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: "a; b"}), "TablePrefix")
}

func TestConcurrentMigrationsDoTheWorkOnce(t *testing.T) {
	db := open(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: "p_"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: "p_"}); err != nil {
		t.Error(err)
	}
}
