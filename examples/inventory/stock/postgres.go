package stock

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// reserveAll deducts consecutive reservations of a partition from the stock in one round trip, and
// records the worker and the epoch.
func reserveAll(worker string) consumer.BatchHandler[pgsink.Tx] {
	const statement = `
		WITH taken AS (UPDATE stock SET present = present - $3 WHERE item = $2 RETURNING item)
		INSERT INTO ledger (reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker)
		SELECT $1, item, $3, $4, $5, $6, $7 FROM taken`
	return func(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, e epoch.Epoch) error {
		var b pgx.Batch
		for _, m := range ms {
			r, err := parse(m)
			if err != nil {
				return err
			}
			b.Queue(statement, r.ID, r.Item, r.Quantity, m.Partition.Number, int64(m.Offset), int64(e), worker).
				Exec(func(done pgconn.CommandTag) error {
					if done.RowsAffected() != 1 {
						return unknown(r.Item)
					}
					return nil
				})
		}
		return tx.SendBatch(ctx, &b).Close()
	}
}

// consumePostgres runs the handler on this process's partitions, into PostgreSQL. To copy it, delete
// what has to do with stage.
func consumePostgres(ctx context.Context, c config, db *show.Database, stage *show.Stage) error {
	source, err := kafkasource.New(kafkasource.Options{Group: c.Group, Topics: []string{c.Topic}, Client: c.client()})
	if err != nil {
		return err
	}
	sink, err := pgsink.Open(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
	if err != nil {
		return err
	}
	handlers := consumer.Batches(reserveAll(c.Worker))
	if c.Publish {
		store, err := pgoutbox.Open[pgsink.Tx](ctx, db.Pool, pgoutbox.Options{Schema: db.Schema})
		if err != nil {
			return err
		}
		if handlers, err = publishing(store, c, stage, reserveAll(c.Worker)); err != nil {
			return err
		}
	}
	return consumer.Run(ctx, source, show.Fenced(sink, stage), handlers, options(stage))
}
