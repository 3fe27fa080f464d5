package httpfence

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Migration is one version of the schema of an [SQLStore].
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

// Migrations returns the schema as scripts for a migration tool of your own.
// Whoever uses [Migrate] has no need of them.
func Migrations(d Dialect, o SQLOptions) ([]Migration, error) {
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
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) error {
	ms, err := Migrations(d, o)
	if err != nil {
		return err
	}
	o, _ = o.withDefaults() // as Migrations did
	if err := migrate(ctx, &SQLStore{db: db, d: d, o: o}, ms); err != nil {
		return fmt.Errorf("httpfence: migrate %s: %w", d, err)
	}
	return nil
}

func migrate(ctx context.Context, s *SQLStore, ms []Migration) error {
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.end()
	if lock := s.d.lockMigrations(); lock != "" {
		if err := t.exec(lock); err != nil {
			return err
		}
	}
	v, err := s.d.version(ctx, t.conn, s.o.TablePrefix+"schema")
	if err != nil {
		return fmt.Errorf("read the version of the schema: %w", err)
	}
	if v > len(ms) {
		return fmt.Errorf("the tables %s* are of version %d, this program knows none above %d; use a newer program", s.o.TablePrefix, v, len(ms))
	}
	for _, m := range ms[v:] {
		if err := t.exec(m.SQL); err != nil {
			return fmt.Errorf("to version %d: %w", m.Version, err)
		}
	}
	return t.commit()
}
