package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// side is one column. Its stream, and its group's bucket or consumer, have the column's ID as their
// name.
type side struct {
	*payments
	column  *show.Column
	charges string     // the gateway's database
	gateway *show.Crew // of one process
	url     string     // of the gateway
	sent    []int64    // the sequence of each message
	verdict verdict
}

func (p *payments) Side(c *show.Column) show.Side {
	sd := &side{payments: p, column: c, charges: filepath.Join(p.Dir, c.ID+"-gateway.db"), sent: make([]int64, p.Messages)}
	sd.gateway = show.NewCrew(func(int) any {
		return config{Role: roleGateway, Database: sd.charges, Fenced: c.Name == show.Fence, Silent: p.silentEvery()}
	})
	return sd
}

func (sd *side) Config(n int) any {
	return config{
		Role: sd.column.Name, Worker: workerName(n),
		NATS: sd.nats, Stream: sd.column.ID, Transform: transform(sd.column.ID, sd.Partitions), Group: sd.column.ID, Lease: sd.lease,
		Database: sd.column.DB.URL, Schema: sd.column.DB.Schema, Gateway: sd.url, Timeout: sd.timeout,
	}
}

func workerName(n int) string { return "worker " + strconv.Itoa(n) }

func (sd *side) Prepare(ctx context.Context) (err error) {
	if err := makeTables(ctx, sd.column); err != nil {
		return err
	}
	if err := createStream(ctx, sd.js, sd.column.ID, sd.Partitions, sd.replicas); err != nil {
		return err
	}
	if _, err := sd.gateway.Start(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if sd.url, err = sd.gateway.Address(ctx); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// makeTables makes the tables of a column, and what its status page shows.
func makeTables(ctx context.Context, c *show.Column) (err error) {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	tables, db := sqliteTables, c.DB
	if db.Pool != nil {
		tables = postgresTables
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	c.Page.Title = "payments"
	var operating, queueing error
	if db.Pool == nil {
		err = errors.Join(
			sqlsink.Migrate(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{}),
			sqloutbox.Migrate(ctx, db.DB, sqloutbox.SQLite, sqloutbox.Options{}))
		c.Page.Operator, operating = sqlsink.OpenOperator(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
		c.Page.Outbox, queueing = sqloutbox.OpenOperator(ctx, db.DB, sqloutbox.SQLite, sqloutbox.Options{})
	} else {
		err = errors.Join(
			pgsink.Migrate(ctx, db.Pool, pgsink.Options{Schema: db.Schema}),
			pgoutbox.Migrate(ctx, db.Pool, pgoutbox.Options{Schema: db.Schema}))
		c.Page.Operator, operating = pgsink.OpenOperator(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
		c.Page.Outbox, queueing = pgoutbox.OpenOperator(ctx, db.Pool, pgoutbox.Options{Schema: db.Schema})
	}
	return errors.Join(err, operating, queueing)
}

func (sd *side) Send(ctx context.Context, from, to int) error {
	return send(ctx, sd.js, sd.column.ID, sd.sent[from:to], func(i int) Payment { return payment(sd.Seed, from+i, sd.accounts()) })
}

func (sd *side) Applied(ctx context.Context) (int, error) {
	return sd.column.DB.Count(ctx, `SELECT count(DISTINCT payment) FROM payments WHERE charge IS NOT NULL`)
}

func (sd *side) Elsewhere(ctx context.Context, subject string, not int) (bool, error) {
	// The owner of a partition records charges of payments that the previous owner has written.
	where, args := `payment = $1 AND charge IS NOT NULL`, []any{strings.TrimPrefix(subject, "payment-")}
	if partition, sequence, ok := show.Position(subject); ok {
		where, args = `stream_partition = $1 AND stream_sequence >= $2 AND worker <> $3`, []any{partition, sequence, workerName(not)}
	} else if sd.column.Name == show.Baseline {
		where, args = `payment = $1 AND worker <> $2`, append(args, workerName(not))
	}
	found, err := sd.column.DB.Count(ctx, `SELECT count(*) FROM payments WHERE `+where, args...)
	return found > 0, err
}

func (sd *side) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	if err := sd.gateway.Stop(gatewayGrace); err != nil {
		return false, nil, fmt.Errorf("gateway: %w", err)
	}
	charges, err := show.OpenDatabase(ctx, sd.charges, "")
	if err != nil {
		return false, nil, err
	}
	defer charges.Close()
	sd.verdict, err = judge(ctx, sd.column.DB, charges, sd.Seed, sd.accounts(), sd.sent)
	rows = append(sd.verdict.rows(), show.Row{Label: "refused by the gateway", Value: show.Thousands(sd.column.Crew.Outcomes(show.Refused))})
	return sd.verdict.exact(sd.column.Name == show.Fence), rows, err
}

func (sd *side) Close() error {
	return errors.Join(sd.gateway.Stop(0), removeStream(sd.js, sd.column.ID))
}
