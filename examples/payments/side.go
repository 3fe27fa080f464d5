package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// side is one column. Its stream, and its group's bucket or consumer, have the column's ID as their
// name.
type side struct {
	*payments
	column  *show.Column
	gateway *http.Server
	url     string         // of the gateway
	charges *show.Database // the gateway's
	sent    []int64        // the sequence of each message
	verdict verdict
}

func (p *payments) Side(c *show.Column) show.Side {
	return &side{payments: p, column: c, sent: make([]int64, p.Messages)}
}

func (sd *side) Config(worker string) any {
	return config{
		Worker: worker, NATS: sd.nats, Stream: sd.column.ID, Transform: transform(sd.column.ID, sd.Partitions),
		Group: sd.column.ID, Lease: sd.lease, Gateway: sd.url, Timeout: sd.timeout,
	}
}

func (sd *side) Prepare(ctx context.Context) error {
	if err := makeTables(ctx, sd.column); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if err := createStream(ctx, sd.js, sd.column.ID, sd.Partitions, sd.replicas); err != nil {
		return err
	}
	if err := sd.openGateway(ctx); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

func (sd *side) openGateway(ctx context.Context) (err error) {
	if sd.charges, err = show.NewDatabase(ctx, &show.Settings{Dir: sd.Dir}, sd.column.ID+"-gateway"); err != nil {
		return err
	}
	handler, err := gateway(ctx, sd.charges, sd.column.Name == show.Fence, sd.silentEvery())
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	sd.gateway, sd.url = show.Serve(l, handler), "http://"+l.Addr().String()
	return nil
}

func (sd *side) Play(ctx context.Context) error {
	return sd.Load.Play(ctx, sd.column, sd.send, sd.applied)
}

const ledgerTable = `
CREATE TABLE payments (
	seq              %s,
	payment          BIGINT  NOT NULL,
	account          TEXT    NOT NULL,
	cents            BIGINT  NOT NULL,
	charge           BIGINT, -- NULL until the gateway has answered
	stream_partition INTEGER, -- NULL in the baseline
	stream_sequence  BIGINT  NOT NULL,
	epoch            BIGINT,  -- NULL in the baseline
	worker           TEXT    NOT NULL
);
CREATE INDEX payments_payment ON payments (payment);`

// makeTables makes the tables of a column, and what its status page shows.
func makeTables(ctx context.Context, c *show.Column) (err error) {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	var creating, operating error
	db := c.DB
	_, creating = db.ExecContext(ctx, fmt.Sprintf(ledgerTable, db.Counter()))
	if db.Pool == nil {
		err = sqlsink.Migrate(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
		c.Page.Operator, operating = sqlsink.OpenOperator(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
	} else {
		err = pgsink.Migrate(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
		c.Page.Operator, operating = pgsink.OpenOperator(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
	}
	return errors.Join(creating, err, operating)
}

func (sd *side) send(ctx context.Context, from, to int) error {
	return send(ctx, sd.js, sd.column.ID, sd.sent[from:to], func(i int) Payment { return payment(sd.Seed, from+i, sd.accounts()) })
}

func (sd *side) applied(ctx context.Context) (int, error) {
	return sd.column.DB.Count(ctx, `SELECT count(DISTINCT payment) FROM payments WHERE charge IS NOT NULL`)
}

func (sd *side) Elsewhere(ctx context.Context, subject string, _ show.Point, worker string) (bool, error) {
	// The owner of a partition records charges of payments that the previous owner has written.
	where, args := `payment = $1 AND charge IS NOT NULL`, []any{strings.TrimPrefix(subject, "payment-")}
	if partition, sequence, ok := show.Position(subject); ok {
		where, args = `stream_partition = $1 AND stream_sequence >= $2 AND worker <> $3`, []any{partition, sequence, worker}
	} else if sd.column.Name == show.Baseline {
		where, args = `payment = $1 AND worker <> $2`, append(args, worker)
	}
	found, err := sd.column.DB.Count(ctx, `SELECT count(*) FROM payments WHERE `+where, args...)
	return found > 0, err
}

func (sd *side) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	closing, cancel := context.WithTimeout(ctx, gatewayGrace)
	defer cancel()
	if err := sd.gateway.Shutdown(closing); err != nil {
		return false, nil, fmt.Errorf("gateway: %w", err)
	}
	sd.verdict, err = judge(ctx, sd.column.DB, sd.charges, sd.Seed, sd.accounts(), sd.sent)
	rows = append(sd.verdict.rows(), show.Number("refused by the gateway", sd.column.Crew.Outcomes(show.Refused)))
	return sd.verdict.exact(sd.column.Name == show.Fence), rows, err
}

func (sd *side) Close() error {
	if sd.gateway != nil {
		_ = sd.gateway.Close()
	}
	return errors.Join(sd.charges.Drop(), removeStream(sd.js, sd.column.ID))
}
