package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// payAll is pay for PostgreSQL, and for consecutive messages of a partition, which it writes to the
// ledger in one round trip.
func payAll(box *outbox.Box[pgsink.Tx], c config) consumer.BatchHandler[pgsink.Tx] {
	const statement = `
		INSERT INTO payments (payment, account, cents, stream_partition, stream_sequence, epoch, worker)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`
	return func(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, e epoch.Epoch) error {
		var lines pgx.Batch
		for _, m := range ms {
			p, err := parse(m.Value)
			if err != nil {
				return err
			}
			charge, err := p.charge(c.Gateway)
			if err != nil {
				return err
			}
			if err := box.Add(ctx, tx, m, charge); err != nil {
				return err
			}
			lines.Queue(statement, p.ID, p.Account, p.Cents, m.Partition.Number, int64(m.Offset), int64(e), c.Worker)
		}
		return tx.SendBatch(ctx, &lines).Close()
	}
}

func chargedInPostgres(ctx context.Context, tx pgsink.Tx, e outbox.Sent, a outbox.Answer) error {
	r, err := receipt(a.Body, e.IdempotencyKey)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE payments SET charge = $1 WHERE payment = $2`, r.Charge, r.Payment)
	return err
}

func payPostgres(ctx context.Context, c config, js jetstream.JetStream, pool *pgxpool.Pool, stage *show.Stage) error {
	source, err := natssource.New(natssource.Options{
		Group: c.Group, JetStream: js, Bucket: c.Group, LeaseTTL: c.Lease, Name: c.Worker,
		Streams: []natssource.Stream{{Name: c.Stream, Transform: &c.Transform}},
	})
	if err != nil {
		return err
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{Schema: c.Schema})
	if err != nil {
		return err
	}
	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{Schema: c.Schema})
	if err != nil {
		return err
	}
	box, err := outbox.New(store, outbox.Options[pgsink.Tx]{
		OnAnswer: chargedInPostgres, RequestTimeout: c.Timeout, Concurrency: requests, Client: c.client(stage),
		Observe: stage.Stats.ObserveOutbox, ObserveBacklog: stage.Stats.ObserveBacklog,
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, show.Fenced(sink, stage), consumer.Batches(payAll(box, c)).Background(box.Relay), consumer.Options{
		MaxBatch: maxBatch,
		Observe:  stage.Stats.Observe, HangTimeout: show.HangTimeout,
	})
}

const postgresTables = `
CREATE TABLE payments (
	seq              BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment          BIGINT  NOT NULL,
	account          TEXT    NOT NULL,
	cents            BIGINT  NOT NULL,
	charge           BIGINT, -- NULL until the gateway has answered
	stream_partition INTEGER, -- NULL in the baseline
	stream_sequence  BIGINT  NOT NULL,
	epoch            BIGINT,  -- NULL in the baseline
	worker           TEXT    NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX payments_payment ON payments (payment);`
