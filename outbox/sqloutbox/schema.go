package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/queue"
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

// Migration is one version of the schema.
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

//go:embed migrations/sqlite/*.sql
var migrationFiles embed.FS

func schema(o Options) sqlschema.Schema {
	return sqlschema.Schema{Package: "sqloutbox", Prefix: o.TablePrefix, Scripts: sqlschema.Scripts(migrationFiles, "migrations/sqlite")}
}

// Migrations returns the schema for SQLite as scripts for a migration tool of
// your own. Whoever uses [Migrate] has no need of them.
func Migrations(o Options) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var ms []Migration
	for _, m := range schema(o).Migrations() {
		ms = append(ms, Migration(m))
	}
	return ms, nil
}

// lockTimeout bounds the wait of Migrate for the write lock, beside its context.
const lockTimeout = 30 * time.Second

// Migrate makes the tables in a SQLite database, or brings them up to date.
// Several processes may call it at once; one does the work. A schema newer than
// this program knows is an error.
func Migrate(ctx context.Context, db *sql.DB, o Options) error {
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
	if err := migrate(ctx, conn, o); err != nil {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		return fmt.Errorf("sqloutbox: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, conn *sql.Conn, o Options) error {
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
	v, err := version(ctx, conn, o)
	if err != nil {
		return err
	}
	err = schema(o).Upgrade(v, func(script string) error {
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
func version(ctx context.Context, q sqlschema.Querier, o Options) (int, error) {
	v, err := sqlschema.SQLiteVersion(ctx, q, schema(o).Table())
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}
