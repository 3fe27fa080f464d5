package migrations

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Migration is one version of the tables of one package. The script itself records that it was
// applied, so any tool can run it. Those of sqlfence keep no record, and can be run again.
type Migration struct {
	Of      string // the package
	Version int    // from 1, without gaps; upgrades the version before
	Name    string // valid in a file name
	SQL     string // several statements; to be run in one transaction. MariaDB commits each; there it can be run again
}

var (
	makes   = regexp.MustCompile(`(?i)\bcreate\s+(?:unlogged\s+)?table\s+(?:if\s+not\s+exists\s+)?([^\s(]+)`)
	changes = regexp.MustCompile(`(?i)\b(?:alter\s+table|drop\s+table|truncate|create\s+(?:unique\s+)?index\s+\S+\s+on|create\s+(?:constraint\s+)?trigger\s+[^;]*?\son)\s+([^\s(;]+)`)
	remark  = regexp.MustCompile(`--[^\n]*`)
)

// Locks returns the tables that the script changes, in the order of its text, without those that it makes. It
// locks them until it commits, which is a matter of milliseconds: no script rewrites or reads a table.
func (m Migration) Locks() (tables []string) {
	script := remark.ReplaceAllString(m.SQL, "")
	made := map[string]bool{}
	for _, found := range makes.FindAllStringSubmatch(script, -1) {
		made[found[1]] = true
	}
	for _, found := range changes.FindAllStringSubmatch(script, -1) {
		if table := found[1]; !made[table] && !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	return tables
}

// Tool is a migration tool.
type Tool int

// The tools that [Write] knows.
const (
	Goose         Tool = iota + 1 // github.com/pressly/goose
	GolangMigrate                 // github.com/golang-migrate/migrate
	Tern                          // github.com/jackc/tern, which allows no gaps in the numbers
	Dbmate                        // github.com/amacneil/dbmate
	Atlas                         // ariga.io/atlas; run `atlas migrate hash` after Write
)

type form struct{ suffix, before, after string }

var forms = map[Tool]form{
	// Without StatementBegin, goose would split functions at their semicolons.
	Goose:         {".sql", "-- +goose Up\n-- +goose StatementBegin\n", "-- +goose StatementEnd\n"},
	GolangMigrate: {".up.sql", "", ""},
	Tern:          {".sql", "", ""},
	Dbmate:        {".sql", "-- migrate:up\n\n", "\n-- migrate:down\n"}, // Dbmate requires both
	Atlas:         {".sql", "-- atlas:delimiter -- end of the script\n\n", "-- end of the script\n"},
}

// Write writes a file into dir for each migration. The number of the first file is first, such as
// 0012 or 20261122120000. The following numbers have as many digits. Write does not overwrite an
// existing file: it returns an error.
func Write(dir string, t Tool, first string, ms ...Migration) error {
	form, ok := forms[t]
	if !ok {
		return fmt.Errorf("migrations: no such tool: %d", t)
	}
	number, err := strconv.ParseUint(first, 10, 63)
	if err != nil {
		return fmt.Errorf("migrations: the first number is %q; want digits, as 0012 or 20261122120000", first)
	}
	for i, m := range ms {
		name := fmt.Sprintf("%0*d_epochfence_%s_%d_%s%s", len(first), number+uint64(i), m.Of, m.Version, m.Name, form.suffix)
		if err := create(filepath.Join(dir, name), form.before+m.SQL+form.after); err != nil {
			return fmt.Errorf("migrations: %w", err)
		}
	}
	return nil
}

func create(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Errors of Open and Migrate of all packages that have tables. Their text says what to do.
var (
	// ErrNotMigrated is returned when the tables do not exist.
	ErrNotMigrated = errors.New("schema is not migrated")

	// ErrOlder is returned when the tables lack migrations that the program needs.
	ErrOlder = errors.New("schema is older than this program")

	// ErrNewer is returned when a program of a later major number has migrated the tables: their version is
	// 1000 or more above. Other newer tables have all that the program needs.
	ErrNewer = errors.New("schema is newer than this program")
)
