package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file has the options, and creates and updates the tables. store.go has the statements of
// handlers and relays.

// Options configure a [Store]. The zero value works.
type Options struct {
	// TablePrefix is the prefix of the table names: letters, digits and underscores, at most 32.
	// Set it to keep several outboxes in one database apart. Defaults to "epochfence_outbox_".
	TablePrefix string
}

func (o Options) withDefaults() (Options, error) {
	o.TablePrefix = cmp.Or(o.TablePrefix, "epochfence_outbox_")
	if err := sqlschema.CheckPrefix("Options.TablePrefix", o.TablePrefix); err != nil {
		return o, fmt.Errorf("sqloutbox: %w", err)
	}
	return o, nil
}

func schema(d Dialect, o Options) sqlschema.Prefixed {
	return sqlschema.Prefixed{
		Prefix: o.TablePrefix, Scripts: d.migrations(),
		Remedy: "sqloutbox.Migrate, epochfence migrate up --outbox, or the SQL of sqloutbox.Migrations",
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

// limits limit the lock waits of Open and Migrate, in addition to their contexts.
var limits = sqltx.Limits{Wait: 30 * time.Second}

// Migrate creates the tables or updates them, in one transaction. It does not change tables that
// are up to date, and returns [migrations.ErrNewer] for tables that are newer than this program.
// Concurrent calls wait for each other. Migrate needs the privilege to create tables.
// It waits up to 30 s for a locked file.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := sqltx.Migrate(ctx, db, d.transactions(), schema(d, o), limits); err != nil {
		return fmt.Errorf("sqloutbox: migrate %s: %w", d, err)
	}
	return nil
}
