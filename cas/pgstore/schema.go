package pgstore

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/migrations"
)

// This file creates and updates the tables. Package pgschema runs the steps.

// DefaultSchema is the default of Options.Schema.
const DefaultSchema = "epochfence_cas"

// Options configure a [Store]. The zero value works. Use the same Options for [Migrate] and [Open].
type Options struct {
	// Schema is the schema of the tables, whose names begin with cas_. It may be another package's
	// or the application's schema. Defaults to [DefaultSchema].
	Schema string
}

func (o Options) withDefaults() (Options, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	if err := pgschema.CheckIdentifier("Options.Schema", o.Schema); err != nil {
		return o, fmt.Errorf("pgstore: %w", err)
	}
	return o, nil
}

func wait() pgschema.Wait { return pgschema.Wait{Timeout: waits.Timeout, Log: slog.Default()} }

//go:embed migrations/*.sql
var migrationFiles embed.FS

const remedy = sqlschema.Remedy("pgstore.Migrate, or the SQL of pgstore.Migrations")

func schema(o Options) pgschema.Schema {
	return pgschema.Schema{
		Of: "pgstore", Name: o.Schema, Table: "cas_migration",
		Scripts: pgschema.Read(migrationFiles, "migrations", "pgstore", DefaultSchema, o.Schema),
		Remedy:  remedy,
	}
}

// Migrations returns the schema as SQL for your own migration tool: see package migrations. The
// first script creates the schema unless it exists.
func Migrations(o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(o).Migrations(), nil
}

// DB is a [*pgx.Conn] or a pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Migrate creates the schema or updates it, in one transaction. It does not change a schema that is
// up to date, and returns [migrations.ErrNewer] for a schema that is newer than this program.
// Concurrent calls wait for each other.
//
// The current role becomes the owner of the tables. Another role needs USAGE on the schema and on
// the sequence cas_number, SELECT on the tables, and INSERT, UPDATE and DELETE on cas_item. PUBLIC may
// execute the function cas_place unless default privileges forbid it.
func Migrate(ctx context.Context, db DB, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	return schema(o).Migrate(ctx, db, wait())
}
