package pgoutbox

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/migrations"
)

// This file has the options, and creates, updates and grants the tables. store.go has the
// statements of handlers and relays.

// DefaultSchema is the default of Options.Schema.
const DefaultSchema = "epochfence_outbox"

// Options configure a [Store]. The zero value works. Use the same Options for [Migrate], [Grant]
// and [Open].
type Options struct {
	// Schema is the schema of the tables, whose names begin with outbox_. It may be the sink's or
	// the application's schema. Set it to keep the outboxes of several applications in one database
	// apart. Defaults to [DefaultSchema].
	Schema string

	// StartTimeout limits how long Open, Migrate and Grant wait for a server that cannot be
	// reached. They log the wait after 1 s and then every 10 s. Raise it if the program starts long
	// before its server. Defaults to 30 s.
	StartTimeout time.Duration

	// Logger receives these lines. Defaults to [slog.Default].
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	if err := pgschema.CheckIdentifier("Options.Schema", o.Schema); err != nil {
		return o, fmt.Errorf("pgoutbox: %w", err)
	}
	o.StartTimeout = cmp.Or(o.StartTimeout, waits.Timeout)
	if o.StartTimeout < time.Millisecond || o.StartTimeout > 24*time.Hour {
		return o, fmt.Errorf("pgoutbox: Options.StartTimeout is %v; want 0 for the default of %v, or 1ms to 24h", o.StartTimeout, waits.Timeout)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o, nil
}

func (o *Options) wait() pgschema.Wait { return pgschema.Wait{Timeout: o.StartTimeout, Log: o.Logger} }

//go:embed migrations/*.sql
var migrationFiles embed.FS

const remedy = sqlschema.Remedy("pgoutbox.Migrate, epochfence migrate up --outbox, or the SQL of pgoutbox.Migrations")

func schema(o Options) pgschema.Schema {
	return pgschema.Schema{
		Of: "pgoutbox", Name: o.Schema, Table: "outbox_migration",
		Scripts: pgschema.Read(migrationFiles, "migrations", "pgoutbox", DefaultSchema, o.Schema),
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

// DB is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Migrate creates the schema or updates it, in one transaction. It does not change a schema that is
// up to date, and returns [migrations.ErrNewer] for a schema that is newer than this program.
// Concurrent calls wait for each other.
//
// The current role becomes the owner of the tables. It needs CREATE on the schema, and CREATE on
// the database if the schema does not exist. Use [Grant] to give access to the application's role.
func Migrate(ctx context.Context, db DB, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	return schema(o).Migrate(ctx, db, o.wait())
}

// Grant gives role the privileges that an application needs: to select, insert and delete entries,
// and to clear requests to retry. Run it as the schema's owner, and again after each migration.
func Grant(ctx context.Context, db DB, role string, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	sql, err := GrantSQL(role, o)
	if err != nil {
		return err
	}
	return schema(o).Grant(ctx, db, o.wait(), role, sql)
}

// GrantSQL returns the SQL that [Grant] runs, for your own migration tool.
func GrantSQL(role string, o Options) (string, error) {
	return grants(role, o, "grant usage on schema %[1]s to %[2]s;\n"+
		"grant select on %[1]s.outbox_migration to %[2]s;\n"+
		"grant execute on function %[1]s.outbox_identity_behind to %[2]s;\n"+
		"grant select, insert, delete, update (retry_requested) on %[1]s.outbox_entry to %[2]s;\n")
}
