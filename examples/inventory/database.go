package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

const (
	// reachable is how long a service may take to answer at the start.
	reachable = 5 * time.Second

	// preparing is how long making topics and tables, or removing them, may take.
	preparing = 30 * time.Second
)

// database is the parent's view of one column's tables.
type database struct {
	db     *sql.DB
	path   string // of the SQLite file, or the postgres:// URL
	schema string // in PostgreSQL, "" in SQLite
}

// newDatabase creates the tables of a column, with so many items in stock. The
// schema is for PostgreSQL.
func newDatabase(ctx context.Context, path, schema string, items int) (*database, error) {
	ctx, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	d := &database{path: path}
	var err error
	if isPostgres(path) {
		d.schema = schema
		err = d.createPostgres(ctx)
	} else {
		err = d.createSQLite(ctx)
	}
	if err == nil {
		err = d.stockUp(ctx, items)
	}
	if err != nil {
		if d.db != nil {
			_ = d.drop()
		}
		return nil, err
	}
	return d, nil
}

func (d *database) createSQLite(ctx context.Context) (err error) {
	if d.db, err = openSQLite(d.path); err != nil {
		return err
	}
	if _, err = d.db.ExecContext(ctx, sqliteTables); err != nil {
		return fmt.Errorf("inventory: create the tables in %s: %w", d.path, err)
	}
	return sqlsink.Migrate(ctx, d.db, sqlsink.SQLite, sqlsink.Options{})
}

// pingPostgres makes sure that somebody answers, and lets us in.
func pingPostgres(ctx context.Context, url string) error {
	pool, err := openPostgres(ctx, url, "public")
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(ctx, reachable)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer from PostgreSQL within %v: %w", reachable, err)
		}
		return fmt.Errorf("inventory: -database: %w", err)
	}
	return nil
}

func (d *database) createPostgres(ctx context.Context) error {
	pool, err := openPostgres(ctx, d.path, d.schema)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{d.schema}.Sanitize()); err != nil {
		return fmt.Errorf("inventory: create a schema of our own in the database%s: %w", permission(err), err)
	}
	d.db = stdlib.OpenDB(*pool.Config().ConnConfig)
	if _, err := pool.Exec(ctx, postgresTables); err != nil {
		return fmt.Errorf("inventory: create the tables in schema %s: %w", d.schema, err)
	}
	return pgsink.Migrate(ctx, pool, d.schema)
}

// permission says what to do about a refusal that a grant would resolve.
func permission(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return " (GRANT CREATE ON DATABASE … TO the role, or use another)"
	}
	return ""
}

// stockUp puts the initial stock in.
func (d *database) stockUp(ctx context.Context, items int) error {
	var b strings.Builder
	for n := range items {
		if n > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "('%s', %d)", itemName(n), initial)
	}
	if _, err := d.db.ExecContext(ctx, "INSERT INTO stock (item, present) VALUES "+b.String()); err != nil {
		return fmt.Errorf("inventory: put %d items in stock: %w", items, err)
	}
	return nil
}

// ledger calls each for every line, in the order in which they were written.
func (d *database) ledger(ctx context.Context, each func(entry)) error {
	rows, err := d.db.QueryContext(ctx,
		`SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker FROM ledger ORDER BY seq`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.ID, &e.Item, &e.Quantity, &e.Partition, &e.Offset, &e.Epoch, &e.Worker); err != nil {
			return err
		}
		each(e)
	}
	return rows.Err()
}

// stock returns how much of each item is there.
func (d *database) stock(ctx context.Context) (map[string]int64, error) {
	rows, err := d.db.QueryContext(ctx, `SELECT item, present FROM stock`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	present := map[string]int64{}
	for rows.Next() {
		var (
			item string
			n    int64
		)
		if err := rows.Scan(&item, &n); err != nil {
			return nil, err
		}
		present[item] = n
	}
	return present, rows.Err()
}

// drop removes the schema, in PostgreSQL, and closes. A SQLite file stays.
func (d *database) drop() error {
	defer d.close()
	if d.schema == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), preparing)
	defer cancel()
	if _, err := d.db.ExecContext(ctx, "DROP SCHEMA "+pgx.Identifier{d.schema}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("inventory: drop schema %s: %w", d.schema, err)
	}
	return nil
}

func (d *database) close() { _ = d.db.Close() }
