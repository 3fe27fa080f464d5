package sqlschema_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/migrations"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

var scripts = sqlschema.Read(fstest.MapFS{
	"migrations/0001_things.sql": file(`CREATE TABLE {{prefix}}things (id INTEGER);`),
	"migrations/0002_name.sql":   file(`ALTER TABLE {{prefix}}things ADD COLUMN name TEXT;`),
	"migrations/0003_colour.sql": file(`ALTER TABLE {{prefix}}things ADD COLUMN colour TEXT;`),
}, "migrations", "things")

func things() sqlschema.Prefixed {
	return sqlschema.Prefixed{Prefix: "app_", Scripts: scripts, Remedy: "things.Migrate"}
}

func TestTablesOfAnotherVersionAreRefusedWithTheirNamesAndBothVersions(t *testing.T) {
	s := things()
	for have, want := range map[int]struct {
		is   error
		says string
	}{
		0:    {migrations.ErrNotMigrated, "tables app_*: schema is not migrated: run things.Migrate"},
		2:    {migrations.ErrOlder, "tables app_*: schema is older than this program: it is at version 2, this program needs 3: run things.Migrate"},
		1000: {migrations.ErrNewer, "tables app_*: schema is newer than this program: it is at version 1000, this program knows none above 3: update the program"},
	} {
		if err := s.Check(have); !errors.Is(err, want.is) || err.Error() != want.says {
			t.Errorf("version %d: %v, want %q", have, err, want.says)
		}
	}
	ran := false
	touch := func(string) error { ran = true; return nil }
	if err := s.Upgrade(1000, touch); !errors.Is(err, migrations.ErrNewer) || ran {
		t.Errorf("tables of another major number were touched: %v", err)
	}
	if err := errors.Join(s.Check(999), s.Upgrade(999, touch)); err != nil || ran {
		t.Errorf("newer tables of the same major number: %v, touched: %t", err, ran)
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
