package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/queue"
	"github.com/epochfence/epochfence/internal/sqliteschema"
	"github.com/epochfence/epochfence/internal/sqlschema"
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

// lockTimeout bounds the wait of Migrate for the write lock, beside its context.
const lockTimeout = 30 * time.Second

// Migrate creates the tables, or brings them up to date, in one transaction. Of
// concurrent calls one does it and the others wait. Tables that are up to date are
// left alone; those that are newer than this program are [ErrSchemaNewer]. It needs
// the right to create tables.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	var conn *sql.Conn
	err = patiently(ctx, func() (err error) { // its PRAGMAs may be in someone's way
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqloutbox: migrate: connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := migrate(ctx, conn, d, o); err != nil {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		return fmt.Errorf("sqloutbox: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, conn *sql.Conn, d Dialect, o Options) error {
	q, err := queue.Open(ctx, conn)
	if err != nil {
		return err
	}
	defer q.Wait()()
	err = patiently(ctx, func() error {
		_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
		return err
	})
	if err != nil {
		return err
	}
	v, err := version(ctx, conn, d, o)
	if err != nil {
		return err
	}
	err = schema(d, o).Upgrade(v, func(script string) error {
		_, err := conn.ExecContext(ctx, script)
		return err
	})
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, `COMMIT`)
	return err
}

// patiently does what another connection may be in the way of, until it is not
// or ctx ends.
func patiently(ctx context.Context, do func() error) error {
	tick := time.NewTicker(queue.Poll)
	defer tick.Stop()
	for {
		err := do()
		var e interface{ Code() int }
		if err == nil || !errors.As(err, &e) || e.Code()&0xff != sqliteBusy {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the write lock was not free: %w: %w", ctx.Err(), err)
		}
	}
}

const sqliteBusy = 5 // https://www.sqlite.org/rescode.html

// version is the schema's, or 0 where there is none.
func version(ctx context.Context, q sqliteschema.Querier, d Dialect, o Options) (int, error) {
	v, err := d.version(ctx, q, schema(d, o).Table())
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

// What can be wrong with the tables.
var (
	// ErrNotMigrated: there are none. Run [Migrate].
	ErrNotMigrated = errors.New("schema is not migrated: run sqloutbox.Migrate, or the SQL of sqloutbox.Migrations")

	// ErrSchemaOlder: they lack migrations. Run [Migrate].
	ErrSchemaOlder = errors.New("schema is older than this program: run sqloutbox.Migrate, or the SQL of sqloutbox.Migrations")

	// ErrSchemaNewer: they were migrated by a newer version of this package. Update
	// the program.
	ErrSchemaNewer = errors.New("schema is newer than this program: update the program")
)
