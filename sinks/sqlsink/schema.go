package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Migration is one version of the schema. The script itself records that it was
// applied, so it does not matter whether [Migrate] or another tool runs it.
type Migration struct {
	Version int    // from 1, without a gap: from the version before
	Name    string // fit for a file's name
	SQL     string // several statements; to be run in one transaction
}

func schema(d Dialect, o Options) sqlschema.Prefixed {
	return sqlschema.Prefixed{
		Prefix: o.TablePrefix, Scripts: d.migrations(),
		Errors: sqlschema.Errors{NotMigrated: ErrNotMigrated, Older: ErrSchemaOlder, Newer: ErrSchemaNewer},
	}
}

// Migrations returns the schema as SQL for a migration tool of your own.
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

// Migrate creates the tables, or brings them up to date, in one transaction. Of
// concurrent calls one does it and the others wait. Tables that are up to date are
// left alone; those that are newer than this program are [ErrSchemaNewer]. It needs
// the right to create tables.
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

// What can be wrong with the tables.
var (
	// ErrNotMigrated: there are none. Run [Migrate].
	ErrNotMigrated = errors.New("schema is not migrated: run sqlsink.Migrate, or the SQL of sqlsink.Migrations")

	// ErrSchemaOlder: they lack migrations. Run [Migrate].
	ErrSchemaOlder = errors.New("schema is older than this program: run sqlsink.Migrate, or the SQL of sqlsink.Migrations")

	// ErrSchemaNewer: they were migrated by a newer version of this package. Update
	// the program.
	ErrSchemaNewer = errors.New("schema is newer than this program: update the program")
)
