package sqltx_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"testing/fstest"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

var scripts = sqlschema.Read(fstest.MapFS{
	"migrations/0001_things.sql": file(`CREATE TABLE {{prefix}}migration (version INTEGER NOT NULL, name TEXT NOT NULL); CREATE TABLE {{prefix}}things (id INTEGER);`),
	"migrations/0002_name.sql":   file(`ALTER TABLE {{prefix}}things ADD COLUMN name TEXT;`),
	"migrations/0003_colour.sql": file(`ALTER TABLE {{prefix}}things ADD COLUMN colour TEXT;`),
}, "migrations", "things")

func things(scripts []migrations.Migration) sqlschema.Prefixed {
	return sqlschema.Prefixed{Prefix: "app_", Scripts: scripts}
}

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
			v, err := sqltx.SQLite.Version(t.Context(), db, "app_migration")
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		older := things(scripts[:from])
		if err := older.Upgrade(version(), exec); err != nil {
			t.Fatal(err)
		}
		if v := version(); v != from {
			t.Fatalf("version %d, want %d", v, from)
		}
		now := things(scripts)
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
