package sqlsink_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// wantError fails the test unless err says all of these.
func wantError(t testing.TB, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", says)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("err = %q, want it to say %q", err, s)
		}
	}
}

func TestOpenRefusesATableVersionThatTheProgramDoesNotKnow(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	_, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	wantError(t, err, "tables epochfence_*", "sqlsink.Migrate")

	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, `INSERT INTO epochfence_migration (version, name) VALUES (99, 'of tomorrow')`)
	if _, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Errorf("tables that are newer: %v", err)
	}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Errorf("tables that are newer: %v", err)
	}
	mustExec(t, db, `INSERT INTO epochfence_migration (version, name) VALUES (1000, 'of another major number')`)
	_, err = sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	wantError(t, err, "version 1000", "update the program")
	wantError(t, sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}), "version 1000", "update the program")

	mustExec(t, db, `DELETE FROM epochfence_migration`)
	_, err = sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	wantError(t, err, "sqlsink.Migrate")
}

func TestOpenRefusesAFileThatIsNotInWALMode(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "app.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	_, err = sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	wantError(t, err, `journal mode is "delete"`, "_pragma=journal_mode(WAL)")
}

func TestOpenSaysWhatIsWrongWithTheFile(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "no such directory", "app.db"))
	_, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	wantError(t, err, "sqlsink: open SQLite:", "unable to open database file")
	wantError(t, sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}), "sqlsink: migrate SQLite:", "unable to open database file")
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	for _, o := range []sqlsink.Options{
		{TablePrefix: "has space"},
		{TablePrefix: `x"; DROP TABLE y; --`},
		{TablePrefix: "1st"},
		{TablePrefix: "größe"},
		{TablePrefix: strings.Repeat("x", 33)},
		{LockTimeout: -1},
		{LockTimeout: 25 * time.Hour},
	} {
		if _, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, o); err == nil || !strings.Contains(err.Error(), "sqlsink: Options.") {
			t.Errorf("Open with %+v: err = %v", o, err)
		}
		if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, o); err == nil {
			t.Errorf("Migrate with %+v was accepted", o)
		}
	}
}

func TestConcurrentMigrationsDoTheWorkOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.db")
	var wg sync.WaitGroup
	for range 8 {
		db := open(t, file)
		wg.Go(func() {
			if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var versions int
	if err := open(t, file).QueryRow(`SELECT count(*) FROM epochfence_migration`).Scan(&versions); err != nil || versions != 6 {
		t.Errorf("%d versions in the schema table, %v", versions, err)
	}
}

func TestTheExportedScriptsMakeWhatMigrateMakes(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	o := sqlsink.Options{TablePrefix: "ef2_"}
	ms, err := sqlsink.Migrations(sqlsink.SQLite, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range ms {
		if m.Version != i+1 {
			t.Errorf("migration %d has version %d", i, m.Version)
		}
		mustExec(t, db, m.SQL)
	}
	s := newSink(t, db, o)
	f := claim(t, s, 3)
	if f.Epoch != 3 {
		t.Errorf("epoch %d, want 3", f.Epoch)
	}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, o); err != nil {
		t.Errorf("Migrate after the scripts: %v", err)
	}
}

func TestTwoPrefixesAreTwoSinks(t *testing.T) {
	db := open(t, newFile(t))
	o := sqlsink.Options{TablePrefix: "other_"}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, o); err != nil {
		t.Fatal(err)
	}
	a, b := newSink(t, db, sqlsink.Options{}), newSink(t, db, o)
	fa, fb := claim(t, a, 5), claim(t, b, 9)
	if fa.Epoch != 5 || fb.Epoch != 9 {
		t.Errorf("epochs %d and %d, want 5 and 9", fa.Epoch, fb.Epoch)
	}
	if _, err := a.Claim(t.Context(), fb, epoch.NewClaim(epoch.Lease{Origin: fa.Origin, Generation: 10})); err == nil {
		t.Error("one sink's fence was good for the other")
	}
}
