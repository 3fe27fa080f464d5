// Package sqlschema keeps the versions of a package's tables in the user's
// database, where their names begin with a prefix. It hides how a version is
// recorded (in the table <prefix>schema, by the scripts themselves, so that they work in
// a foreign migration tool too) and says which of program and tables is behind.
package sqlschema

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Schema is the tables of one package with one prefix.
type Schema struct {
	Package string   // whose it is, for errors: it has a func Migrate and a func Migrations
	Prefix  string   // begins the names of the tables
	Scripts []string // version 1 first, each from the version before, with {{prefix}}
}

// Migration is one version of the schema.
type Migration struct {
	Version int
	SQL     string
}

// Table holds the version in its only row.
func (s Schema) Table() string { return s.Prefix + "schema" }

// Migrations returns the scripts with the names filled in.
func (s Schema) Migrations() []Migration {
	var ms []Migration
	for i, script := range s.Scripts {
		v := i + 1
		script = strings.ReplaceAll(script, "{{prefix}}", s.Prefix)
		// The schema says its own version, so that a foreign tool need not.
		if v == 1 {
			script += fmt.Sprintf("\nINSERT INTO %s (version) VALUES (1);\n", s.Table())
		} else {
			script += fmt.Sprintf("\nUPDATE %s SET version = %d;\n", s.Table(), v)
		}
		ms = append(ms, Migration{v, script})
	}
	return ms
}

// Upgrade runs what is missing above version have, in the caller's transaction,
// which must exclude others that upgrade. A newer version than the program's is an error.
func (s Schema) Upgrade(have int, exec func(script string) error) error {
	ms := s.Migrations()
	if have > len(ms) {
		return s.Check(have)
	}
	for _, m := range ms[have:] {
		if err := exec(m.SQL); err != nil {
			return fmt.Errorf("to version %d: %w", m.Version, err)
		}
	}
	return nil
}

// Check refuses tables of another version than the program's and says what to do.
// Version 0 means that there are none.
func (s Schema) Check(have int) error {
	switch want := len(s.Scripts); {
	case have == want:
		return nil
	case have == 0:
		return fmt.Errorf("there are no tables %s*; call %s.Migrate, or run the scripts of %s.Migrations", s.Prefix, s.Package, s.Package)
	case have < want:
		return fmt.Errorf("the tables %s* are of version %d, this program needs %d; "+
			"call %s.Migrate, or run the scripts of %s.Migrations from version %d on", s.Prefix, have, want, s.Package, s.Package, have+1)
	default:
		return fmt.Errorf("the tables %s* are of version %d, this program knows none above %d; use a newer program", s.Prefix, have, want)
	}
}

// Scripts reads the files of dir, in the order of their names.
func Scripts(files fs.FS, dir string) []string {
	names, err := fs.Glob(files, dir+"/*.sql") // sorted
	if err != nil {
		panic(err) // the pattern is ours
	}
	var all []string
	for _, name := range names {
		script, err := fs.ReadFile(files, name)
		if err != nil {
			panic(err) // the files are part of the program
		}
		all = append(all, string(script))
	}
	return all
}

// prefixes are what may begin a table name and needs no quotes. MySQL's names
// have at most 64 characters; ours add up to 20.
var prefixes = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)

// CheckPrefix refuses what cannot be a [Schema.Prefix]. Option is its name, for
// the error.
func CheckPrefix(option, prefix string) error {
	if !prefixes.MatchString(prefix) {
		return fmt.Errorf("%s is %q; want a letter or underscore, then letters, digits and underscores, at most 32 in all", option, prefix)
	}
	return nil
}

// Querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// SQLiteVersion reads the version from a [Schema.Table] in SQLite. It is 0 where
// there is no such table.
func SQLiteVersion(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT version FROM `+table).Scan(&v)
	return v, err
}
