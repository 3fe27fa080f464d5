package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/internal/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// Options say how a [Store] works. The zero Options work.
type Options struct {
	// TablePrefix begins the names of the tables: letters, digits and
	// underscores, at most 32. Empty means "epochfence_outbox_".
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

// Migrations returns the schema as SQL for a migration tool of your own: see package
// migrations.
func Migrations(d Dialect, o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(d, o).Migrations(), nil
}

// limits bound the wait of Open and Migrate for a lock, beside their contexts.
var limits = sqltx.Limits{Wait: 30 * time.Second}

// Migrate creates the tables, or brings them up to date, in one transaction. Of
// concurrent calls one does it and the others wait. Tables that are up to date are
// left alone; those that are newer than this program are [migrations.ErrNewer]. It needs
// the right to create tables.
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
