package stock

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// execer is a transaction of database/sql: *sqlsink.Tx, *sql.Tx, or sqlc's DBTX.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// reserve deducts one reservation from the stock, and records the worker and the epoch. It knows
// nothing of fences: its writes commit together with the message's position, or not at all.
func reserve[TX execer](worker string) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		r, err := parse(m)
		if err != nil {
			return err
		}
		taken, err := tx.ExecContext(ctx, `UPDATE stock SET present = present - ? WHERE item = ?`, r.Quantity, r.Item)
		if err != nil {
			return err
		}
		if n, err := taken.RowsAffected(); err == nil && n != 1 {
			return unknown(r.Item)
		}
		_, err = tx.ExecContext(ctx,
			`INSERT INTO ledger (reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Item, r.Quantity, m.Partition.Number, m.Offset, e, worker)
		return err
	}
}

// consumeSQLite runs the handler on this process's partitions, into SQLite. To copy it, delete what
// has to do with stage.
func consumeSQLite(ctx context.Context, c config, db *sql.DB, stage *show.Stage) error {
	source, err := kafkasource.New(kafkasource.Options{Group: c.Group, Topics: []string{c.Topic}, Client: c.client()})
	if err != nil {
		return err
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	handle := reserve[*sqlsink.Tx](c.Worker)
	handlers := consumer.Each(handle)
	if c.Publish {
		store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
		if err != nil {
			return err
		}
		handlers, err = publishing(store, c, stage, func(ctx context.Context, tx *sqlsink.Tx, ms []consumer.Message, e epoch.Epoch) (err error) {
			for i := 0; i < len(ms) && err == nil; i++ {
				err = handle(ctx, tx, ms[i], e)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return consumer.Run(ctx, source, show.Fenced(sink, stage), handlers, options(stage))
}
