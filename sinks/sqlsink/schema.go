package sqlsink

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file migrates the tables, among them those of the outbox. How scripts are applied is decided in internal/sql.

// Migrations returns the schema as SQL for your own migration tool: see package migrations.
func Migrations(d Dialect, o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return d.tables(o.TablePrefix).Migrations(), nil
}

// Migrate creates the tables of sinks and of the outbox (package sqloutbox), or brings them up to date. It does so
// in one transaction; in MariaDB, where each CREATE TABLE commits, call it again if it fails. Of concurrent calls,
// one migrates and the others wait. It leaves newer tables as they are; those of a later major number are
// [migrations.ErrNewer]. It needs the privilege to create tables.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := sqltx.Migrate(ctx, db, d.transactions(), d.tables(o.TablePrefix), o.limits()); err != nil {
		return fmt.Errorf("sqlsink: migrate %s: %w", d, err)
	}
	return nil
}
