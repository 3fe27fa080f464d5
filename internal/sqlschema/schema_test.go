package sqlschema_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/sqlschema"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

var scripts = sqlschema.Scripts(fstest.MapFS{
	"migrations/0001.sql": file(`CREATE TABLE {{prefix}}schema (version INTEGER NOT NULL); CREATE TABLE {{prefix}}things (id INTEGER);`),
	"migrations/0002.sql": file(`ALTER TABLE {{prefix}}things ADD COLUMN name TEXT;`),
	"migrations/0010.sql": file(`ALTER TABLE {{prefix}}things ADD COLUMN colour TEXT;`),
}, "migrations")

func TestTablesAreBroughtUpFromAnyVersionAndSayTheirOwn(t *testing.T) {
	for from := range 4 {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "schema.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		exec := func(script string) error { _, err := db.ExecContext(t.Context(), script); return err }
		version := func() int {
			t.Helper()
			v, err := sqlschema.SQLiteVersion(t.Context(), db, "app_schema")
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		older := sqlschema.Schema{Package: "things", Prefix: "app_", Scripts: scripts[:from]}
		if err := older.Upgrade(version(), exec); err != nil {
			t.Fatal(err)
		}
		if v := version(); v != from {
			t.Fatalf("version %d, want %d", v, from)
		}
		now := sqlschema.Schema{Package: "things", Prefix: "app_", Scripts: scripts}
		if err := now.Upgrade(version(), exec); err != nil {
			t.Fatalf("from %d: %v", from, err)
		}
		if v := version(); v != 3 || now.Check(v) != nil {
			t.Errorf("from %d: version %d, %v", from, v, now.Check(v))
		}
		if err := exec(`INSERT INTO app_things (id, name, colour) VALUES (1, 'a', 'b')`); err != nil {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

func TestTablesOfAnotherVersionAreRefusedWithWhatToDo(t *testing.T) {
	s := sqlschema.Schema{Package: "things", Prefix: "app_", Scripts: scripts}
	for have, says := range map[int]string{
		0: "no tables app_*; call things.Migrate",
		2: "app_* are of version 2, this program needs 3; call things.Migrate, or run the scripts of things.Migrations from version 3 on",
		4: "app_* are of version 4, this program knows none above 3; use a newer program",
	} {
		if err := s.Check(have); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("version %d: %v, want %q", have, err, says)
		}
	}
	ran := false
	if err := s.Upgrade(4, func(string) error { ran = true; return nil }); err == nil || ran {
		t.Errorf("tables of a newer program were touched: %v", err)
	}
}

func TestAPrefixIsWhatNeedsNoQuotes(t *testing.T) {
	for prefix, fits := range map[string]bool{
		"a": true, "_b2": true, "Abc_": true, strings.Repeat("x", 32): true,
		"": false, "2a": false, "a b": false, "a;": false, "a-": false, "ä": false, strings.Repeat("x", 33): false,
	} {
		err := sqlschema.CheckPrefix("Options.TablePrefix", prefix)
		if (err == nil) != fits {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}
