package docs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// The old consumer: it applies what it has polled, and then commits its offsets.
func oldConsumer(ctx context.Context, pool *pgxpool.Pool, group *kgo.Client) error {
	for {
		polled := group.PollRecords(ctx, 100)
		if err := polled.Err(); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for _, r := range polled.Records() {
				if err := shipOnce(ctx, tx, string(r.Value)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := group.CommitRecords(ctx, polled.Records()...); err != nil {
			return err
		}
		group.AllowRebalance()
	}
}

// shipOnce is the effect of a message, unless the table has its id.
func shipOnce(ctx context.Context, tx execer, order string) error {
	tag, err := tx.Exec(ctx, `insert into seen (id) values ($1) on conflict do nothing`, order)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return ship(ctx, tx, order)
}

func ship(ctx context.Context, tx execer, order string) error {
	_, err := tx.Exec(ctx, `insert into shipment (order_id) values ($1)`, order)
	return err
}

// execer is a transaction: pgx.Tx in the old consumer, pgsink.Tx in the new one.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// note says which messages of a partition the transaction applies. had has the offsets
// of those whose ids the dedupe table had.
func note(ctx context.Context, tx pgx.Tx, generation int32, process string, rs []*kgo.Record, had map[int64]bool) error {
	first, caught := 0, 0
	for i, r := range rs {
		if had[r.Offset] {
			caught++
		}
		if i+1 < len(rs) && rs[i+1].Offset == r.Offset+1 {
			continue
		}
		var why *string
		err := tx.QueryRow(ctx, `select epochfence.observe('shipping', $1, $2, $3, $4, $5, $6, null, $7)`,
			r.Topic, r.Partition, rs[first].Offset, r.Offset, generation, process, caught).Scan(&why)
		if err != nil {
			return err
		}
		if why != nil {
			log.Print(*why)
		}
		first, caught = i+1, 0
	}
	return nil
}

// The handler for as long as there are consumers of both kinds: it writes the
// table too.
func shipBeside(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	return shipOnce(ctx, tx, string(m.Value))
}

// The handler once epochfence moveover has said that the table may go.
func shipAlone(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	return ship(ctx, tx, string(m.Value))
}

// The new consumer.
func newConsumer(ctx context.Context, pool *pgxpool.Pool, handle consumer.Handler[pgsink.Tx], client ...kgo.Opt) error {
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Options{
		Group:  "shipping", // the old one's
		Topics: []string{"orders"},
		Client: client, // seed brokers, TLS, SASL, and a balancer that the old one has too
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, sink, consumer.Each(handle).OnFailure(sink.DeadLetter), consumer.Options{})
}

func TestTheOldConsumerNotesWhatItAppliesAsTheGuideHasIt(t *testing.T) {
	pool := database(t, "dedupe.sql")
	rs := []*kgo.Record{{Topic: "orders", Partition: 3, Offset: 100}, {Topic: "orders", Partition: 3, Offset: 101}, {Topic: "orders", Partition: 3, Offset: 149}}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return note(t.Context(), tx, 7, "worker-a", rs, map[int64]bool{101: true}) }); err != nil {
		t.Fatal(err)
	}
	await(t, pool, `select string_agg(concat_ws(' ', group_name, topic, partition, first_offset, last_offset, generation, process, caught), ', ' order by id) from epochfence.observed`,
		"shipping orders 3 100 101 7 worker-a 1, shipping orders 3 149 149 7 worker-a 0")
}

func TestADedupeTableIsReplacedAsTheGuideHasIt(t *testing.T) {
	pool := database(t, "dedupe.sql")
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "orders"), kfake.GroupMinSessionTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	options := []kgo.Opt{kgo.SeedBrokers(broker.ListenAddrs()...), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.SessionTimeout(10 * time.Second)}
	producer, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)

	sent := 0
	ships := func(more int) {
		t.Helper()
		for range more {
			order := fmt.Sprint("order-", sent)
			if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Key: []byte(order), Value: []byte(order)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		want := fmt.Sprintf("%d of %d", sent, sent)
		await(t, pool, `select count(*) || ' of ' || count(distinct order_id) from shipment`, want)
	}
	run := func(f func(ctx context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}

	old := run(func(ctx context.Context) error {
		group, err := kgo.NewClient(append(options, kgo.ConsumerGroup("shipping"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())...)
		if err != nil {
			return err
		}
		defer group.CloseAllowingRebalance()
		return oldConsumer(ctx, pool, group)
	})
	ships(20)
	beside := run(func(ctx context.Context) error { return newConsumer(ctx, pool, shipBeside, options...) })
	ships(20)
	old()
	ships(20)
	beside()
	alone := run(func(ctx context.Context) error { return newConsumer(ctx, pool, shipAlone, options...) })
	ships(20)
	alone()
	await(t, pool, `select count(*)::text from epochfence.fence where next_offset > 0`, "4")
	for _, file := range []string{"fences.sql", "dead_letters.sql"} {
		if _, err := pool.Exec(t.Context(), script(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
