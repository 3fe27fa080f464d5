// Package sqlschema versions a package's tables in the user's database. Each version has a script
// that also records the version, so that other migration tools can run it. The package's errors say
// whether the program or the tables are behind. Packages on database/sql give their table names a
// prefix. Packages on pgx have a PostgreSQL schema, for which package pgschema adds the rest.
package sqlschema

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/migrations"
)

// Remedy names what a user of one package runs to migrate its tables.
type Remedy string

// NotMigrated returns the error for tables that do not exist.
func (r Remedy) NotMigrated() error { return fmt.Errorf("%w: run %s", migrations.ErrNotMigrated, r) }

// Major is the distance of the versions of two major numbers of epochfence: below 1000 are those of 0 and 1.
const Major = 1000

// Check returns an error unless a program that knows the versions up to want works on tables of version have.
// Within a major number, a later version only adds to what earlier programs use. Version 0 means that there
// are no tables.
func (r Remedy) Check(have, want int) error {
	switch {
	case have == 0:
		return r.NotMigrated()
	case have < want:
		return fmt.Errorf("%w: it is at version %d, this program needs %d: run %s", migrations.ErrOlder, have, want, r)
	case have/Major > want/Major:
		return fmt.Errorf("%w: it is at version %d, this program knows none above %d: update the program", migrations.ErrNewer, have, want)
	default:
		return nil
	}
}

// Upgrade runs the scripts of all after version have, in the caller's transaction, which must
// exclude other upgrades. Tables that are newer stay as they are.
func (r Remedy) Upgrade(have int, all []migrations.Migration, exec func(script string) error) error {
	if have > len(all) {
		return r.Check(have, len(all))
	}
	for _, m := range all[have:] {
		if err := exec(m.SQL); err != nil {
			return fmt.Errorf("to version %d, %s: %w", m.Version, m.Name, err)
		}
	}
	return nil
}

// Read reads a package's scripts from dir. Their names are like 0001_name.sql, from version 1 on.
func Read(files fs.FS, dir, of string) []migrations.Migration {
	names, err := fs.Glob(files, dir+"/*.sql") // sorted
	if err != nil {
		panic(err) // the pattern is ours
	}
	var all []migrations.Migration
	for _, file := range names {
		script, err := fs.ReadFile(files, file)
		if err != nil {
			panic(err) // the files are part of the program
		}
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".sql"), "_")
		if v, err := strconv.Atoi(number); err != nil || v != len(all)+1 || name == "" {
			panic(file + ": want version " + strconv.Itoa(len(all)+1) + " and a name")
		}
		all = append(all, migrations.Migration{Of: of, Version: len(all) + 1, Name: name, SQL: string(script)})
	}
	return all
}

//go:embed sqlite/*.sql mariadb/*.sql
var files embed.FS

// SQLite returns the tables of fences, of the rows of operators and of the outbox in SQLite, whose names have a prefix.
func SQLite(prefix string) Prefixed { return sink("sqlite", prefix) }

// MariaDB returns the same tables in MariaDB, where each CREATE TABLE commits: a script must be able to run
// again from its beginning, by IF NOT EXISTS and ADD COLUMN IF NOT EXISTS.
func MariaDB(prefix string) Prefixed { return sink("mariadb", prefix) }

func sink(dir, prefix string) Prefixed {
	return Prefixed{
		Prefix: prefix, Scripts: Read(files, dir, "sqlsink"),
		Remedy: "sqlsink.Migrate, epochfence migrate up, or the SQL of sqlsink.Migrations",
	}
}

// DefaultPrefix is the prefix unless an option has another.
const DefaultPrefix = "epochfence_"

// Prefixed are tables whose names have a prefix.
type Prefixed struct {
	Prefix  string
	Scripts []migrations.Migration // with {{prefix}}
	Remedy  Remedy
}

// Table returns the name of the table with a row for each version.
func (s Prefixed) Table() string { return s.Prefix + "migration" }

// Migrations returns the scripts with the names filled in.
func (s Prefixed) Migrations() []migrations.Migration {
	var ms []migrations.Migration
	for _, m := range s.Scripts {
		m.SQL = strings.ReplaceAll(m.SQL, "{{prefix}}", s.Prefix) +
			fmt.Sprintf("\nINSERT INTO %s (version, name) VALUES (%d, '%s');\n", s.Table(), m.Version, m.Name)
		ms = append(ms, m)
	}
	return ms
}

// Upgrade runs the scripts after version have. See [Remedy.Upgrade].
func (s Prefixed) Upgrade(have int, exec func(script string) error) error {
	return s.where(s.Remedy.Upgrade(have, s.Migrations(), exec))
}

// Check returns an error unless the program works on tables of this version.
func (s Prefixed) Check(have int) error { return s.where(s.Remedy.Check(have, len(s.Scripts))) }

func (s Prefixed) where(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tables %s*: %w", s.Prefix, err)
}

// prefixes are valid in a table name without quotes. MySQL's names have at most 64 characters; ours
// add up to 20.
var prefixes = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)

// CheckPrefix returns an error unless prefix may be a [Prefixed.Prefix]. option is its name, for
// the error.
func CheckPrefix(option, prefix string) error {
	if !prefixes.MatchString(prefix) {
		return fmt.Errorf("%s is %q; want a letter or underscore, then letters, digits and underscores, at most 32 in all", option, prefix)
	}
	return nil
}
