package migrations_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/migrations"
)

var two = []migrations.Migration{
	{Of: "pgsink", Version: 2, Name: "dead_letter", SQL: "create table a ();\n"},
	{Of: "pgoutbox", Version: 1, Name: "outbox_entry", SQL: "create table b ();\n"},
}

// The tools themselves read them in internal/contrib/workswith/migrations.
func TestEachToolGetsItsForm(t *testing.T) {
	for tool, want := range map[migrations.Tool]string{
		migrations.Goose:         "0012_epochfence_pgsink_2_dead_letter.sql: -- +goose Up\n-- +goose StatementBegin\ncreate table a ();\n-- +goose StatementEnd\n",
		migrations.GolangMigrate: "0012_epochfence_pgsink_2_dead_letter.up.sql: create table a ();\n",
		migrations.Tern:          "0012_epochfence_pgsink_2_dead_letter.sql: create table a ();\n",
		migrations.Dbmate:        "0012_epochfence_pgsink_2_dead_letter.sql: -- migrate:up\n\ncreate table a ();\n\n-- migrate:down\n",
		migrations.Atlas:         "0012_epochfence_pgsink_2_dead_letter.sql: -- atlas:delimiter -- end of the script\n\ncreate table a ();\n-- end of the script\n",
	} {
		dir := t.TempDir()
		if err := migrations.Write(dir, tool, "0012", two...); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 || !strings.HasPrefix(files[1].Name(), "0013_epochfence_pgoutbox_1_outbox_entry.") {
			t.Fatalf("files %v, %v", files, err)
		}
		text, err := os.ReadFile(filepath.Join(dir, files[0].Name()))
		if got := files[0].Name() + ": " + string(text); err != nil || got != want {
			t.Errorf("tool %d:\n got %q\nwant %q", tool, got, want)
		}
	}
}

func TestAScriptLocksTheTablesThatItChangesAndNotThoseItMakes(t *testing.T) {
	m := migrations.Migration{SQL: `
-- alter table "e".remark
create table "e".new (id bigint);
alter table "e".new add column a text;
create unique index new_id on "e".new (id);
ALTER TABLE "e".fence ADD COLUMN b text;
create index fence_b on "e".fence (b);
create constraint trigger follow
    after insert on "e".fence_ledger deferrable for each row execute function "e".f();
create function "e".f() returns trigger language plpgsql as $$ begin return new; end $$;`}
	if got := m.Locks(); !slices.Equal(got, []string{`"e".fence`, `"e".fence_ledger`}) {
		t.Errorf("%q", got)
	}
}

func TestAFileThatIsThereIsLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "20261122120001_epochfence_pgoutbox_1_outbox_entry.sql")
	if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := migrations.Write(dir, migrations.Goose, "20261122120000", two...)
	if !errors.Is(err, fs.ErrExist) || !strings.HasPrefix(err.Error(), "migrations: ") {
		t.Errorf("Write = %v, want that the file exists", err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestWhatIsNoNumberOrToolIsRefused(t *testing.T) {
	for _, number := range []string{"", "x", "-1", "1.5", "99999999999999999999"} {
		if err := migrations.Write(t.TempDir(), migrations.Goose, number, two...); err == nil || !strings.Contains(err.Error(), "want digits") {
			t.Errorf("%q: %v", number, err)
		}
	}
	if err := migrations.Write(t.TempDir(), 0, "1", two...); err == nil {
		t.Error("no tool: nil")
	}
}
