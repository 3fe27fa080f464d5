package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
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

// payPostgres runs the handler on this process's partitions, into PostgreSQL.
func payPostgres(ctx context.Context, c config, js jetstream.JetStream, db *show.Database, stage *show.Stage) error {
	sink, err := pgsink.Open(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
	if err != nil {
		return err
	}
	store, err := pgoutbox.Open[pgsink.Tx](ctx, db.Pool, pgoutbox.Options{Schema: db.Schema})
	if err != nil {
		return err
	}
	handlers := func(box *outbox.Box[pgsink.Tx]) consumer.Handlers[pgsink.Tx] { return consumer.Batches(payAll(box, c)) }
	return consume(ctx, c, js, sink, store, chargedInPostgres, handlers, stage)
}
