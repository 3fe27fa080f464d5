package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type ledgerDB struct{ *show.Database }

// newLedger creates the tables of a column. The schema is for PostgreSQL.
func newLedger(ctx context.Context, path, schema string) (*ledgerDB, error) {
	d, err := show.NewDatabase(ctx, path, schema, func(ctx context.Context, d *show.Database) error {
		if d.Pool == nil {
			if _, err := d.ExecContext(ctx, sqliteTables); err != nil {
				return fmt.Errorf("create the tables: %w", err)
			}
			if err := sqlsink.Migrate(ctx, d.DB, sqlsink.SQLite, sqlsink.Options{}); err != nil {
				return err
			}
			return sqloutbox.Migrate(ctx, d.DB, sqloutbox.SQLite, sqloutbox.Options{})
		}
		if _, err := d.ExecContext(ctx, postgresTables); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
		if err := pgsink.Migrate(ctx, d.Pool, pgsink.Options{Schema: d.Schema}); err != nil {
			return err
		}
		return pgoutbox.Migrate(ctx, d.Pool, pgoutbox.Options{Schema: d.Schema})
	})
	if err != nil {
		return nil, err
	}
	return &ledgerDB{d}, nil
}

func (d *ledgerDB) operator(ctx context.Context) (operate.Operator, error) {
	if d.Pool != nil {
		return pgsink.OpenOperator(ctx, d.Pool, pgsink.Options{Schema: d.Schema})
	}
	return sqlsink.OpenOperator(ctx, d.DB, sqlsink.SQLite, sqlsink.Options{})
}

func (d *ledgerDB) outboxOperator(ctx context.Context) (operate.Outbox, error) {
	if d.Pool != nil {
		return pgoutbox.OpenOperator(ctx, d.Pool, pgoutbox.Options{Schema: d.Schema})
	}
	return sqloutbox.OpenOperator(ctx, d.DB, sqloutbox.SQLite, sqloutbox.Options{})
}

func (d *ledgerDB) lines(ctx context.Context, each func(line)) error {
	rows, err := d.QueryContext(ctx,
		`SELECT payment, account, cents, COALESCE(charge, 0), stream_partition, stream_sequence, epoch FROM payments ORDER BY seq`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var l line
		if err := rows.Scan(&l.ID, &l.Account, &l.Cents, &l.Charge, &l.Partition, &l.Offset, &l.Epoch); err != nil {
			return err
		}
		each(l)
	}
	return rows.Err()
}

func (d *ledgerDB) uncharged(ctx context.Context) (n int, err error) {
	err = d.QueryRowContext(ctx, `SELECT count(*) FROM payments WHERE charge IS NULL`).Scan(&n)
	return n, err
}

func (d *ledgerDB) settled(ctx context.Context, name string) (bool, error) {
	id, err := paymentNumber(name)
	if err != nil {
		return false, err
	}
	var n int
	err = d.QueryRowContext(ctx, fmt.Sprintf(`SELECT count(*) FROM payments WHERE payment = %d AND charge IS NOT NULL`, id)).Scan(&n)
	return n > 0, err
}

type gatewayDB struct{ path string }

func (d gatewayDB) charges(ctx context.Context, each func(charge)) error {
	db, err := openGateway(d.path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, `SELECT charge, payment, account, cents, COALESCE(epoch, 0) FROM charges ORDER BY charge`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var c charge
		if err := rows.Scan(&c.Number, &c.ID, &c.Account, &c.Cents, &c.Epoch); err != nil {
			return err
		}
		each(c)
	}
	return rows.Err()
}

func (d gatewayDB) notes(ctx context.Context) (map[string]int, error) {
	db, err := openGateway(d.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, `SELECT what, count(*) FROM notes GROUP BY what`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	counts := map[string]int{}
	for rows.Next() {
		var (
			what string
			n    int
		)
		if err := rows.Scan(&what, &n); err != nil {
			return nil, err
		}
		counts[what] = n
	}
	return counts, rows.Err()
}
