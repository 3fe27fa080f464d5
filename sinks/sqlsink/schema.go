package sqlsink

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Migration is one version of the schema.
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

// Migrations returns the schema as scripts for a migration tool of your own.
// Whoever uses [Migrate] has no need of them.
func Migrations(d Dialect, o Options) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var ms []Migration
	for i, script := range d.migrations() {
		v := i + 1
		script = strings.ReplaceAll(script, "{{prefix}}", o.TablePrefix)
		// The schema says its own version, so that a foreign tool need not.
		if v == 1 {
			script += fmt.Sprintf("\nINSERT INTO %sschema (version) VALUES (1);\n", o.TablePrefix)
		} else {
			script += fmt.Sprintf("\nUPDATE %sschema SET version = %d;\n", o.TablePrefix, v)
		}
		ms = append(ms, Migration{Version: v, SQL: script})
	}
	return ms, nil
}

// Migrate makes the tables, or brings them up to date. Several processes may
// call it at once; one does the work. It needs the right to create tables. A
// schema newer than this program knows is an error.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	ms, err := Migrations(d, o)
	if err != nil {
		return err
	}
	o, _ = o.withDefaults() // as Migrations did
	s := &Sink{db: db, d: d, o: o}
	t := s.newTransaction()
	defer t.end()
	if err := t.begin(ctx); err != nil {
		return fmt.Errorf("sqlsink: migrate: %w", err)
	}
	v, err := d.version(ctx, t.conn, o.TablePrefix+"schema")
	if err != nil {
		return fmt.Errorf("sqlsink: migrate: read the version of the schema: %w", err)
	}
	if v > len(ms) {
		return fmt.Errorf("sqlsink: migrate: %w", &versionError{o.TablePrefix, v, len(ms)})
	}
	for _, m := range ms[v:] {
		if _, err := t.conn.ExecContext(ctx, m.SQL); err != nil {
			return fmt.Errorf("sqlsink: migrate to version %d: %w", m.Version, err)
		}
	}
	if err := t.commit(ctx); err != nil {
		return fmt.Errorf("sqlsink: migrate: %w", err)
	}
	return nil
}

// checkVersion refuses a schema that this program was not written for.
func (s *Sink) checkVersion(ctx context.Context) error {
	v, err := s.d.version(ctx, s.db, s.o.TablePrefix+"schema")
	if err != nil {
		return fmt.Errorf("read the version of the schema: %w", err)
	}
	if want := len(s.d.migrations()); v != want {
		return &versionError{s.o.TablePrefix, v, want}
	}
	return nil
}

// versionError says which of program and schema is behind.
type versionError struct {
	prefix     string
	have, want int
}

func (e *versionError) Error() string {
	switch {
	case e.have == 0:
		return fmt.Sprintf("there are no tables %s*; call sqlsink.Migrate, or run the scripts of sqlsink.Migrations", e.prefix)
	case e.have < e.want:
		return fmt.Sprintf("the tables %s* are of version %d, this program needs %d; "+
			"call sqlsink.Migrate, or run the scripts of sqlsink.Migrations from version %d on", e.prefix, e.have, e.want, e.have+1)
	default:
		return fmt.Sprintf("the tables %s* are of version %d, this program knows none above %d; use a newer program",
			e.prefix, e.have, e.want)
	}
}

// scripts reads dir/1.sql, dir/2.sql and so on.
func scripts(files embed.FS, dir string) []string {
	var all []string
	for v := 1; ; v++ {
		script, err := files.ReadFile(dir + "/" + strconv.Itoa(v) + ".sql")
		if err != nil {
			return all
		}
		all = append(all, string(script))
	}
}

// tablePrefix is what may begin a table name and needs no quotes. MySQL's
// names have at most 64 characters; ours add up to 20.
var tablePrefix = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)
