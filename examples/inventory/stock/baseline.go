package stock

import (
	"context"
	"database/sql"
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
)

// baselineBatch limits the messages of a poll. The fenced column takes as many of a partition.
const baselineBatch = 256

// consumeAsUsual is a careful form of the code that most services run. It polls, applies the batch
// in one database transaction, publishes, then commits the offsets, and lets the group rebalance only in
// between. apply calls written before it commits. Incidents strike at the cue.
func consumeAsUsual(ctx context.Context, c config, stage *show.Stage,
	apply func(ctx context.Context, ms []consumer.Message, written func()) error,
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
			cue := stage.Cue(show.Subject(records[0].Partition, records[0].Offset),
				show.InHand, show.AfterWrites, show.AfterCommit, show.Publishing, show.Published)
			cue.Reach(show.InHand)
			err := backoff.Retry(func() error {
				return apply(work, messages(records), func() { cue.Reach(show.AfterWrites) })
			}, backoff.WithMaxRetries(backoff.NewConstantBackOff(100*time.Millisecond), 4))
			if err == nil && c.Publish {
				cue.Reach(show.Publishing)
				err = publishAsUsual(work, client, c, messages(records))
				cue.Reach(show.Published)
			}
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
	handle := reserve[*sql.Tx](c.Worker)
	return consumeAsUsual(ctx, c, stage, func(ctx context.Context, ms []consumer.Message, written func()) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // unless it is committed
		for _, m := range ms {
			if err := handle(ctx, tx, m, noEpoch); err != nil {
				return err
			}
		}
		written()
		return tx.Commit()
	})
}

func baselinePostgres(ctx context.Context, c config, pool *pgxpool.Pool, stage *show.Stage) error {
	handle := reserveAll(c.Worker)
	return consumeAsUsual(ctx, c, stage, func(ctx context.Context, ms []consumer.Message, written func()) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			err := handle(ctx, tx, ms, noEpoch)
			if err == nil {
				written()
			}
			return err
		})
	})
}
