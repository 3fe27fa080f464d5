package natsoutbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// benched is a NATS server and a real PostgreSQL, whose outbox is filled beforehand.
type benched struct {
	*testing.B
	js    jetstream.JetStream
	pool  *pgxpool.Pool
	sink  *pgsink.Sink
	store *pgoutbox.Store[pgsink.Tx]
}

const benchBatch, benchMessages = 999, 40 * 999

func newBenched(b *testing.B) *benched {
	m := &benched{B: b, js: natstest.Start(b).JetStream(b)}
	m.try(m.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>", "epochfence-positions.B.>"}, AllowAtomicPublish: true}))
	var err error
	m.pool, err = pgxpool.New(b.Context(), pgtest.Start(b).URL)
	m.try(nil, err)
	b.Cleanup(m.pool.Close)
	m.try(nil, pgsink.Migrate(b.Context(), m.pool, pgsink.Options{}))
	m.sink, err = pgsink.Open(b.Context(), m.pool, pgsink.Options{})
	m.try(nil, err)
	m.store, err = pgoutbox.Open[pgsink.Tx](b.Context(), m.pool, pgoutbox.Options{})
	m.try(nil, err)
	return m
}

func (m *benched) try(_ any, err error) {
	if err != nil {
		m.Helper()
		m.Fatal(err)
	}
}

// relayed returns the messages a second of one partition's relay, once it has sent the first batch.
func (m *benched) relayed() float64 {
	const copies = `insert into epochfence.outbox_entry (group_name, topic, partition, message_offset, order_key, scope, idempotency_key, method, url, header, body)
		select group_name, topic, partition, message_offset, order_key || n, scope, idempotency_key || n, method, url, header, body
		from epochfence.outbox_entry, generate_series(2, $2::int) as n where group_name = $1`
	var mu sync.Mutex
	var at []time.Time
	done := make(chan struct{})
	quiet := slog.New(slog.DiscardHandler)
	box, err := natsoutbox.Open(m.Context(), m.store, natsoutbox.Options{JetStream: m.js, Stream: "B", Logger: quiet, Observe: func(e outbox.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind != outbox.Delivered {
			m.Error(e.Kind, e.Err)
		} else if at = append(at, time.Now()); len(at) == benchMessages {
			close(done)
		}
	}})
	m.try(nil, err)
	log, group := memsource.New("orders", 1), fmt.Sprint("bench-", time.Now().UnixNano())
	log.AppendMessages(0, consumer.Message{Value: []byte("m")})
	g := log.Group(group)
	add := consumer.Each(func(ctx context.Context, tx pgsink.Tx, msg consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, msg, natsoutbox.Message{Subject: "b.1", Data: fmt.Appendf(nil, "%0100d", 1)})
	})
	ctx, stop := context.WithCancel(m.Context())
	defer stop()
	m.try(nil, consumer.Run(g.UntilApplied(ctx), g.Member("a"), m.sink, add, consumer.Options{Logger: quiet}))
	m.try(m.pool.Exec(ctx, copies, group, benchMessages))
	m.try(m.pool.Exec(ctx, `analyze epochfence.outbox_entry`))
	ended := make(chan error, 1)
	go func() {
		ended <- consumer.Run(ctx, g.Member("b"), m.sink, add.Background(box.Relay), consumer.Options{Logger: quiet})
	}()
	select {
	case <-done:
	case err := <-ended:
		m.Fatal(err)
	}
	stop()
	m.try(nil, <-ended)
	return rate(at)
}

// byHand returns the messages a second of atomic batches of the same size, or without batches of a publisher that
// waits for the answers at the end.
func (m *benched) byHand(atomic bool) float64 {
	var at []time.Time
	for sent := 0; sent < benchMessages; sent += benchBatch {
		batch := fmt.Sprint("batch-", time.Now().UnixNano())
		for n := 1; n <= benchBatch; n++ {
			msg := nats.NewMsg("b.1")
			msg.Data = fmt.Appendf(nil, "%0100d", n)
			if !atomic {
				m.try(m.js.PublishMsgAsync(msg))
				continue
			}
			msg.Header.Set("Nats-Batch-Id", batch)
			msg.Header.Set("Nats-Batch-Sequence", strconv.Itoa(n))
			if n == benchBatch {
				msg.Header.Set("Nats-Batch-Commit", "1")
				m.try(m.js.PublishMsg(m.Context(), msg))
			} else {
				m.try(nil, m.js.Conn().PublishMsg(msg))
			}
		}
		if !atomic {
			<-m.js.PublishAsyncComplete()
		}
		at = append(at, slices.Repeat([]time.Time{time.Now()}, benchBatch)...)
	}
	return rate(at)
}

func rate(at []time.Time) float64 {
	return float64(len(at)-benchBatch) / at[len(at)-1].Sub(at[benchBatch-1]).Seconds()
}

// BenchmarkBesideBatchesByHand compares a relay, with all that it does in PostgreSQL, with batches that come from no
// database. They take turns; give it -benchtime 9x.
func BenchmarkBesideBatchesByHand(b *testing.B) {
	m := newBenched(b)
	median := func(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
	var relayed, atomic, async, ratios, asyncRatios []float64
	for b.Loop() {
		atomic, relayed, async = append(atomic, m.byHand(true)), append(relayed, m.relayed()), append(async, m.byHand(false))
		n := len(relayed) - 1
		ratios, asyncRatios = append(ratios, relayed[n]/atomic[n]), append(asyncRatios, relayed[n]/async[n])
	}
	b.ReportMetric(median(relayed), "messages/s")
	b.ReportMetric(median(atomic), "batches-by-hand/s")
	b.ReportMetric(median(async), "async/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(asyncRatios), "async-ratio")
	b.ReportMetric(0, "ns/op")
}
