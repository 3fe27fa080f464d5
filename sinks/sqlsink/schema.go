package sqlsink

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file migrates the tables. How scripts are applied is decided in internal/sql.

func schema(d Dialect, o Options) sqlschema.Prefixed {
	return sqlschema.Prefixed{
		Prefix: o.TablePrefix, Scripts: d.migrations(),
		Remedy: "sqlsink.Migrate, epochfence migrate up, or the SQL of sqlsink.Migrations",
	}
}

// Migrations returns the schema as SQL for your own migration tool: see package migrations.
func Migrations(d Dialect, o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(d, o).Migrations(), nil
}

// Migrate creates the tables, or brings them up to date, in one transaction. Of concurrent calls,
// one migrates and the others wait. Tables newer than this program are [migrations.ErrNewer]. It
// needs the privilege to create tables.
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
