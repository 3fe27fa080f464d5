package httpfence_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

func TestAMigrationThatWaitedForAnotherSeesItThoughItHadLookedBefore(t *testing.T) {
	d := pgtest.Start(t)
	db, err := sql.Open("pgx", d.URL)
	db = opened(t, db, err)
	db.SetMaxOpenConns(1) // the one that remembers that there is no table
	o := httpfence.SQLOptions{TablePrefix: "Receiver_"}
	if _, err := httpfence.OpenSQL(t.Context(), db, httpfence.PostgreSQL, o); err == nil {
		t.Fatal("there are no tables")
	}
	ms, err := httpfence.Migrations(httpfence.PostgreSQL, o)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := d.Superuser(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(7308895159)`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- httpfence.Migrate(t.Context(), db, httpfence.PostgreSQL, o) }()
	watch := d.Superuser(t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waits := false; !waits; <-tick.C {
		err := watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range ms {
		if _, err := tx.Exec(t.Context(), m.SQL); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := httpfence.OpenSQL(t.Context(), db, httpfence.PostgreSQL, o); err != nil {
		t.Error(err)
	}
}

func TestOpenSQLWantsTheTablesOfThisVersionAndAFileInWALMode(t *testing.T) {
	wantError := func(t *testing.T, err error, says string) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), "httpfence: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("err = %v, want one of httpfence that says %q", err, says)
		}
	}
	file := filepath.Join(t.TempDir(), "receiver.db")
	for _, c := range []struct {
		d           httpfence.Dialect
		driver, dsn string
	}{
		{httpfence.SQLite, "sqlite", "file:" + file + "?_pragma=journal_mode(WAL)"},
		{httpfence.PostgreSQL, "pgx", pgtest.Start(t).URL},
	} {
		t.Run(c.d.String(), func(t *testing.T) {
			db, err := sql.Open(c.driver, c.dsn)
			db = opened(t, db, err)
			_, err = httpfence.OpenSQL(t.Context(), db, c.d, httpfence.SQLOptions{})
			wantError(t, err, "run httpfence.Migrate")
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if err := httpfence.Migrate(t.Context(), db, c.d, httpfence.SQLOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if _, err := httpfence.OpenSQL(t.Context(), db, c.d, httpfence.SQLOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := db.ExecContext(t.Context(), `INSERT INTO httpfence_migration (version, name) VALUES (1000, 'of another major number')`); err != nil {
				t.Fatal(err)
			}
			_, err = httpfence.OpenSQL(t.Context(), db, c.d, httpfence.SQLOptions{})
			wantError(t, err, "update the program")
			wantError(t, httpfence.Migrate(t.Context(), db, c.d, httpfence.SQLOptions{}), "update the program")
			for says, o := range map[string]httpfence.SQLOptions{
				"TablePrefix": {TablePrefix: "a b"}, "IdleTimeout": {IdleTimeout: 48 * time.Hour},
			} {
				_, err = httpfence.OpenSQL(t.Context(), db, c.d, o)
				wantError(t, err, says)
			}
		})
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "delete.db")+"?_pragma=journal_mode(DELETE)")
	_, err = httpfence.OpenSQL(t.Context(), opened(t, db, err), httpfence.SQLite, httpfence.SQLOptions{})
	wantError(t, err, "journal_mode(WAL)")
}
