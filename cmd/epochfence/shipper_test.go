package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// The processes of docs/move-over.md.
const (
	oldShipper = "old"    // applies what it has polled, and then commits its offsets
	beside     = "beside" // epochfence, which uses the dedupe table too
	alone      = "alone"  // epochfence without the table
)

const (
	oldSession = 6 * time.Second
	newSession = 2 * time.Second
)

// ship is such a process. Its name begins with the kind.
func ship(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("EPOCHFENCE_DATABASE"))
	if err == nil {
		defer pool.Close()
		brokers := []kgo.Opt{kgo.SeedBrokers(os.Getenv("EPOCHFENCE_KAFKA")), kgo.ClientID(name), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.RebalanceTimeout(10 * time.Second)}
		if kind, _, _ := strings.Cut(name, "-"); kind == oldShipper {
			err = shipOld(ctx, pool, name, append(brokers, kgo.SessionTimeout(oldSession)))
		} else {
			err = shipFenced(ctx, pool, name, kind == beside, append(brokers, kgo.SessionTimeout(newSession)))
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, name, err)
		return 1
	}
	return 0
}

// shipOld applies each message in a transaction of its own.
func shipOld(ctx context.Context, pool *pgxpool.Pool, name string, options []kgo.Opt) error {
	group, err := kgo.NewClient(append(options, kgo.ConsumerGroup(os.Getenv("EPOCHFENCE_TEST_GROUP")), kgo.ConsumeTopics(os.Getenv("EPOCHFENCE_TEST_GROUP")), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())...)
	if err != nil {
		return err
	}
	defer group.CloseAllowingRebalance()
	for {
		polled := group.PollRecords(ctx, 100)
		if err := polled.Err(); err != nil {
			return err
		}
		for _, r := range polled.Records() {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return shipOnce(ctx, tx, name, string(r.Value), r.Partition, r.Offset)
			})
			if err != nil {
				return err
			}
		}
		if err := group.CommitRecords(ctx, polled.Records()...); err != nil {
			return err
		}
		group.AllowRebalance()
	}
}

func shipFenced(ctx context.Context, pool *pgxpool.Pool, name string, table bool, options []kgo.Opt) error {
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Options{Group: os.Getenv("EPOCHFENCE_TEST_GROUP"), Topics: []string{os.Getenv("EPOCHFENCE_TEST_GROUP")}, Client: options})
	if err != nil {
		return err
	}
	handler := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		do := shipAlways
		if table {
			do = shipOnce
		}
		return do(ctx, tx, name, string(m.Value), m.Partition.Number, int64(m.Offset))
	}
	return consumer.Run(ctx, source, sink, consumer.Each(handler), consumer.Options{MaxBatch: 50})
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func shipOnce(ctx context.Context, tx execer, name, order string, number int32, offset int64) error {
	tag, err := tx.Exec(ctx, `insert into seen (id) values ($1) on conflict do nothing`, order)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return shipAlways(ctx, tx, name, order, number, offset)
}

func shipAlways(ctx context.Context, tx execer, name, order string, number int32, offset int64) error {
	_, err := tx.Exec(ctx, `insert into shipment (order_id, number, message_offset, worker) values ($1, $2, $3, $4)`, order, number, offset, name)
	return err
}
