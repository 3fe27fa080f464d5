package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type database struct{ *show.Database }

// newDatabase creates the tables of a column with so many items in stock. The schema is for
// PostgreSQL.
func newDatabase(ctx context.Context, path, schema string, items int) (*database, error) {
	d, err := show.NewDatabase(ctx, path, schema, func(ctx context.Context, d *show.Database) error {
		tables, migrate := sqliteTables, func() error { return sqlsink.Migrate(ctx, d.DB, sqlsink.SQLite, sqlsink.Options{}) }
		if d.Pool != nil {
			tables, migrate = postgresTables, func() error { return pgsink.Migrate(ctx, d.Pool, pgsink.Options{Schema: d.Schema}) }
		}
		if _, err := d.ExecContext(ctx, tables); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
		if err := migrate(); err != nil {
			return err
		}
		return stockUp(ctx, d.DB, items)
	})
	if err != nil {
		return nil, err
	}
	return &database{d}, nil
}

func (d *database) operator(ctx context.Context) (operate.Operator, error) {
	if d.Pool != nil {
		return pgsink.OpenOperator(ctx, d.Pool, pgsink.Options{Schema: d.Schema})
	}
	return sqlsink.OpenOperator(ctx, d.DB, sqlsink.SQLite, sqlsink.Options{})
}

func stockUp(ctx context.Context, db *sql.DB, items int) error {
	var b strings.Builder
	for n := range items {
		if n > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "('%s', %d)", itemName(n), initial)
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO stock (item, present) VALUES "+b.String()); err != nil {
		return fmt.Errorf("inventory: put %d items in stock: %w", items, err)
	}
	return nil
}

// ledger calls each for every line of the ledger, in the order of the writes.
func (d *database) ledger(ctx context.Context, each func(entry)) error {
	rows, err := d.QueryContext(ctx,
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

func (d *database) stock(ctx context.Context) (map[string]int64, error) {
	rows, err := d.QueryContext(ctx, `SELECT item, present FROM stock`)
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
