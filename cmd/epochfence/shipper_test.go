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
	oldShipper = "old"      // applies what it has polled, and then commits its offsets
	observed   = "observed" // the old one, which says what its transactions apply
	bare       = "bare"     // the same without a dedupe table
	beside     = "beside"   // epochfence, which uses the dedupe table too
	alone      = "alone"    // epochfence without the table
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
		switch kind, _, _ := strings.Cut(name, "-"); kind {
		case oldShipper:
			err = shipOld(ctx, pool, name, append(brokers, kgo.SessionTimeout(oldSession)))
		case observed, bare:
			err = shipObserved(ctx, pool, name, kind == observed, append(brokers, kgo.SessionTimeout(oldSession)))
		default:
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

// shipObserved applies the messages of each partition in a transaction, which calls observe last. It also notes each
// delivery, and what it does after it was frozen, so that a test knows the truth.
func shipObserved(ctx context.Context, pool *pgxpool.Pool, name string, table bool, options []kgo.Opt) error {
	group, err := kgo.NewClient(append(options, kgo.ConsumerGroup(os.Getenv("EPOCHFENCE_TEST_GROUP")), kgo.ConsumeTopics(os.Getenv("EPOCHFENCE_TEST_GROUP")), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())...)
	if err != nil {
		return err
	}
	defer group.CloseAllowingRebalance()
	background := context.Background() // what is polled is applied, and its offset committed
	for {
		polled := group.PollRecords(ctx, 50)
		if ctx.Err() != nil {
			return nil
		}
		if err := polled.Err(); err != nil && !errors.As(err, new(*kgo.ErrGroupSession)) { // who was frozen joins again
			return err
		}
		_, generation := group.GroupMetadata()
		thawed := false
		freeze := func(place string) error {
			froze, err := pool.Exec(background, "with f as (delete from to_freeze where place = $1 returning place) insert into frozen (place, worker) select place, $2 from f", place, name)
			if err != nil || froze.RowsAffected() == 0 {
				return err
			}
			thawed = true
			err = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			for goes := false; err == nil && !goes; { // another thread may stop this one only later
				err = pool.QueryRow(background, "select thawed from frozen where worker = $1 and place = $2 order by n desc limit 1", name, place).Scan(&goes)
			}
			return err
		}
		for _, t := range polled {
			for _, topic := range t.Topics {
				for _, p := range topic.Partitions {
					if len(p.Records) == 0 {
						continue
					}
					err := freeze("before its transaction")
					if err == nil {
						err = pgx.BeginFunc(background, pool, func(tx pgx.Tx) error {
							return shipPartition(background, tx, name, generation, table, p.Records, func() error {
								err := freeze("before its commit")
								if thawed && err == nil {
									_, err = tx.Exec(background, "update delivery set thawed = true where tx = pg_current_xact_id()")
								}
								return err
							})
						})
					}
					if err != nil {
						return err
					}
				}
			}
		}
		_ = group.CommitRecords(background, polled.Records()...) // otherwise they are delivered again
		group.AllowRebalance()
	}
}

func shipPartition(ctx context.Context, tx pgx.Tx, name string, generation int32, table bool, rs []*kgo.Record, last func() error) error {
	var ids []string
	for _, r := range rs {
		ids = append(ids, string(r.Value))
	}
	first, end := rs[0], rs[len(rs)-1]
	all := []any{ids, first.Partition, first.Offset, name}
	if _, err := tx.Exec(ctx, "insert into delivery (order_id, number, message_offset, worker) select o, $2, $3 + n - 1, $4 from unnest($1::text[]) with ordinality u (o, n)", all...); err != nil {
		return err
	}
	ship := "insert into shipment (order_id, number, message_offset, worker) select o, $2, $3 + n - 1, $4 from unnest($1::text[]) with ordinality u (o, n)"
	if table {
		ship = "with fresh as (insert into seen (id) select distinct unnest($1::text[]) on conflict do nothing returning id) " +
			strings.Replace(ship, "select o", "select distinct on (o) o", 1) + " where o in (select id from fresh) order by o, n"
	}
	shipped, err := tx.Exec(ctx, ship, all...)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "select epochfence.observe($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		first.Topic, first.Topic, first.Partition, first.Offset, end.Offset, generation, name, ids, int64(len(rs))-shipped.RowsAffected()); err != nil {
		return err
	}
	return last()
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
