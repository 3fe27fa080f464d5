package sqlsink

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Migration is one version of the schema.
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

func schema(d Dialect, o Options) sqlschema.Schema {
	return sqlschema.Schema{Package: "sqlsink", Prefix: o.TablePrefix, Scripts: d.migrations()}
}

// Migrations returns the schema as scripts for a migration tool of your own.
// Whoever uses [Migrate] has no need of them.
func Migrations(d Dialect, o Options) ([]Migration, error) {
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
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := migrate(ctx, newSink(db, d, o)); err != nil {
		return fmt.Errorf("sqlsink: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, s *Sink) error {
	if err := s.patiently(ctx, s.join); err != nil {
		return err
	}
	t := s.newTransaction()
	defer t.end()
	if err := t.begin(ctx); err != nil {
		return err
	}
	v, err := s.version(ctx, t.conn)
	if err != nil {
		return err
	}
	err = schema(s.d, s.o).Upgrade(v, func(script string) error {
		_, err := t.conn.ExecContext(ctx, script)
		return err
	})
	if err != nil {
		return err
	}
	return t.commit(ctx)
}

func (s *Sink) version(ctx context.Context, q querier) (int, error) {
	v, err := s.d.version(ctx, q, schema(s.d, s.o).Table())
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

// checkVersion refuses a schema that this program was not written for.
func (s *Sink) checkVersion(ctx context.Context) error {
	v, err := s.version(ctx, s.db)
	if err != nil {
		return err
	}
	return schema(s.d, s.o).Check(v)
}
