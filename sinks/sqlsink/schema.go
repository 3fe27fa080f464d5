package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/internal/sqltx"
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
	if err := sqltx.Migrate(ctx, db, d.transactions(), schema(d, o), o.limits()); err != nil {
		return fmt.Errorf("sqlsink: migrate %s: %w", d, err)
	}
	return nil
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
