package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
)

// baselineBatch limits the messages of a poll. The fenced column takes as many of a partition.
const baselineBatch = 256

// consumeAsUsual is a careful form of the code that most services run. It polls, applies the batch
// in one database transaction, then commits the offsets, and lets the group rebalance only in
// between. Incidents strike at its cue, which apply puts around the handler.
func consumeAsUsual(ctx context.Context, c config, stage *show.Stage, apply func(context.Context, []*kgo.Record, *show.Cue) error) error {
	client, err := joinAsUsual(c, stage.Holds)
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
			cue := stage.Cue(workOf(fetches), show.InHand, show.Unlocked, show.BeforeWrites, show.AfterWrites, show.AfterCommit)
			cue.Reach(show.InHand)
			err := retry(ctx, func() error { return apply(ctx, records, cue) })
			cue.Done(len(records), err)
			if err != nil {
				return fmt.Errorf("inventory: baseline: %w", err)
			}
			// The effects are committed. If the process ends here, or commitOffsets fails, the next
			// reader applies these messages again.
			if err := commitOffsets(ctx, client, c.Session); err != nil {
				slog.Warn("commit offsets", "err", err)
				stage.Late(err)
			}
		}
		client.AllowRebalance()
	}
	return nil
}

// joinAsUsual returns a member of the group. After each rebalance it calls holds for every
// partition of the member, not only for new ones: the group may have given a partition to another
// member and back unnoticed.
func joinAsUsual(c config, holds func(partition int32, number int64)) (*kgo.Client, error) {
	held := map[int32]bool{}
	gone := func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
		for _, p := range gone[c.Topic] {
			delete(held, p)
		}
	}
	return kgo.NewClient(append(c.client(),
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		// The client never calls these concurrently.
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, added map[string][]int32) {
			for _, p := range added[c.Topic] {
				held[p] = true
			}
			_, generation := client.GroupMetadata()
			for p := range held {
				holds(p, int64(generation))
			}
		}),
		kgo.OnPartitionsRevoked(gone),
		kgo.OnPartitionsLost(gone),
	)...)
}

func commitOffsets(ctx context.Context, client *kgo.Client, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return client.CommitUncommittedOffsets(ctx)
}

func retry(ctx context.Context, f func() error) error {
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt == 5 || ctx.Err() != nil {
			return err
		}
		slog.Warn("transaction", "attempt", attempt, "err", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func baselineSQLite(ctx context.Context, c config, stage *show.Stage) error {
	db, err := show.OpenSQLite(c.Database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	handle := reserve[*sql.Tx](c.Worker)
	return consumeAsUsual(ctx, c, stage, func(ctx context.Context, records []*kgo.Record, cue *show.Cue) error {
		cue.Reach(show.Unlocked)
		tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := handle(ctx, tx, message(r), noEpoch); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		return tx.Commit()
	})
}

func baselinePostgres(ctx context.Context, c config, stage *show.Stage) error {
	pool, err := show.OpenPostgres(ctx, c.Database, c.Schema)
	if err != nil {
		return err
	}
	defer pool.Close()
	handle := reserveAll(c.Worker)
	return consumeAsUsual(ctx, c, stage, func(ctx context.Context, records []*kgo.Record, cue *show.Cue) error {
		return pgx.BeginFunc(context.WithoutCancel(ctx), pool, func(tx pgx.Tx) error {
			cue.Reach(show.BeforeWrites)
			ms := make([]consumer.Message, len(records))
			for i, r := range records {
				ms[i] = message(r)
			}
			if err := handle(ctx, tx, ms, noEpoch); err != nil {
				return err
			}
			cue.Reach(show.AfterWrites)
			return nil
		})
	})
}

const noEpoch epoch.Epoch = 0

func message(r *kgo.Record) consumer.Message {
	return consumer.Message{
		Partition: epoch.Partition{Topic: r.Topic, Number: r.Partition}, Offset: epoch.Offset(r.Offset),
		Key: r.Key, Value: r.Value, Time: r.Timestamp,
	}
}

func workOf(fetches kgo.Fetches) (work show.Work) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if n := len(p.Records); n > 0 {
			work = append(work, show.Span{Partition: p.Partition, From: p.Records[0].Offset, To: p.Records[n-1].Offset + 1})
		}
	})
	return work
}
