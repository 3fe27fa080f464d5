package httpfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Migration is one version of the schema of an [SQLStore].
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

func schema(d Dialect, o SQLOptions) sqlschema.Schema {
	return sqlschema.Schema{Package: "httpfence", Prefix: o.TablePrefix, Scripts: d.migrations()}
}

// Migrations returns the schema as scripts for a migration tool of your own.
// Whoever uses [Migrate] has no need of them.
func Migrations(d Dialect, o SQLOptions) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var ms []Migration
	for _, m := range schema(d, o).Migrations() {
		ms = append(ms, Migration(m))
	}
	return ms, nil
}

// Migrate makes the tables, or brings them up to date. Several processes may
// call it at once; one does the work. It needs the right to create tables. A
// schema newer than this program knows is an error.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	s := newSQLStore(db, d, o)
	err = patiently(ctx, d, func() error { return s.join(ctx) })
	if err == nil {
		err = migrate(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("httpfence: migrate %s: %w", d, err)
	}
	return nil
}

func migrate(ctx context.Context, s *SQLStore) error {
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
	v, err := s.version(ctx, t.conn)
	if err != nil {
		return err
	}
	if err := schema(s.d, s.o).Upgrade(v, t.exec); err != nil {
		return err
	}
	return t.commit()
}

func (s *SQLStore) version(ctx context.Context, q querier) (int, error) {
	v, err := s.d.version(ctx, q, schema(s.d, s.o).Table())
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}
