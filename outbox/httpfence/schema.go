package httpfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file creates and updates the tables of an SQLStore, whose scripts are in migrations/. What
// the rows mean is decided in transaction.go.

func schema(d Dialect, o SQLOptions) sqlschema.Prefixed {
	return sqlschema.Prefixed{
		Prefix: o.TablePrefix, Scripts: d.migrations(),
		Remedy: "httpfence.Migrate, or the SQL of httpfence.Migrations",
	}
}

// Migrations returns the schema as SQL for your own migration tool: see package migrations.
func Migrations(d Dialect, o SQLOptions) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(d, o).Migrations(), nil
}

// Migrate creates the tables or updates them, in one transaction. It does not change tables that
// are up to date, nor newer ones, and returns [migrations.ErrNewer] for those of a later major number.
// Concurrent calls wait for each other. Migrate needs the privilege to create tables.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := sqltx.Migrate(ctx, db, d.transactions(), schema(d, o), o.limits(storeTimeout)); err != nil {
		return fmt.Errorf("httpfence: migrate %s: %w", d, err)
	}
	return nil
}
