package stock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// baselineBatch limits the messages of a poll. The fenced column takes as many of a partition.
const baselineBatch = 256

// consumeAsUsual is a careful form of the code that most services run. It polls, applies the batch
// in one database transaction, then commits the offsets, and lets the group rebalance only in
// between. transact runs a function in a transaction. Incidents strike at the cue.
func consumeAsUsual[TX any](ctx context.Context, c config, stage *show.Stage,
	transact func(context.Context, func(TX) error) error, handle consumer.BatchHandler[TX],
) error {
	client, err := kgo.NewClient(append(c.client(),
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	)...)
	if err != nil {
		return fmt.Errorf("inventory: baseline: %w", err)
	}
	defer client.CloseAllowingRebalance()

	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, baselineBatch)
		fetches.EachError(func(_ string, p int32, err error) {
			if ctx.Err() == nil {
				slog.Warn("fetch", "partition", p, "err", err)
			}
		})
		if records := fetches.Records(); len(records) > 0 {
			work := context.WithoutCancel(ctx)
			cue := stage.Cue(show.Subject(records[0].Partition, records[0].Offset), show.InHand, show.AfterWrites, show.AfterCommit)
			cue.Reach(show.InHand)
			err := backoff.Retry(func() error {
				return transact(work, func(tx TX) error {
					if err := handle(work, tx, messages(records), noEpoch); err != nil {
						return err
					}
					cue.Reach(show.AfterWrites)
					return nil
				})
			}, backoff.WithMaxRetries(backoff.NewConstantBackOff(100*time.Millisecond), 4))
			if cue.Done(err) != nil {
				return fmt.Errorf("inventory: baseline: %w", err)
			}
			// The effects are committed. If the process ends here, or the offsets are refused, the
			// next reader applies these messages again.
			if err := client.CommitUncommittedOffsets(work); err != nil {
				slog.Warn("commit offsets", "err", err)
			}
		}
		client.AllowRebalance()
	}
	return nil
}

const noEpoch epoch.Epoch = 0

func messages(records []*kgo.Record) []consumer.Message {
	ms := make([]consumer.Message, len(records))
	for i, r := range records {
		ms[i] = consumer.Message{
			Partition: epoch.Partition{Topic: r.Topic, Number: r.Partition}, Offset: epoch.Offset(r.Offset),
			Key: r.Key, Value: r.Value, Time: r.Timestamp,
		}
	}
	return ms
}

func baselineSQLite(ctx context.Context, c config, db *sql.DB, stage *show.Stage) error {
	transact := func(ctx context.Context, f func(*sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	handle := reserve[*sql.Tx](c.Worker)
	return consumeAsUsual(ctx, c, stage, transact, func(ctx context.Context, tx *sql.Tx, ms []consumer.Message, e epoch.Epoch) error {
		for _, m := range ms {
			if err := handle(ctx, tx, m, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func baselinePostgres(ctx context.Context, c config, pool *pgxpool.Pool, stage *show.Stage) error {
	transact := func(ctx context.Context, f func(pgsink.Tx) error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return f(tx) })
	}
	return consumeAsUsual(ctx, c, stage, transact, reserveAll(c.Worker))
}
