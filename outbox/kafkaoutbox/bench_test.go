package kafkaoutbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// benched is a real Kafka and a real PostgreSQL, whose outbox is filled beforehand.
type benched struct {
	*testing.B
	seed  string
	pool  *pgxpool.Pool
	sink  *pgsink.Sink
	store *pgoutbox.Store[pgsink.Tx]
}

const benchTopic, benchPositions, benchBatch = "bench-target", "bench-positions", 1000

// benchRecord has a hundred bytes of value.
func benchRecord(n int) kafkaoutbox.Record {
	return kafkaoutbox.Record{Topic: benchTopic, Key: fmt.Appendf(nil, "key-%03d", n), Value: fmt.Appendf(nil, "%0100d", n)}
}

func newBenched(b *testing.B) *benched {
	m := &benched{B: b, seed: kafkatest.Shared(b)}
	cl := m.client()
	if _, err := kadm.NewClient(cl).CreateTopics(b.Context(), 4, 1, nil, benchTopic, benchPositions); err != nil {
		b.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(pgtest.Start(b).URL)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 20
	if m.pool, err = pgxpool.NewWithConfig(b.Context(), config); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.pool.Close)
	if err := pgsink.Migrate(b.Context(), m.pool, pgsink.Options{}); err != nil {
		b.Fatal(err)
	}
	if m.sink, err = pgsink.Open(b.Context(), m.pool, pgsink.Options{}); err != nil {
		b.Fatal(err)
	}
	if m.store, err = pgoutbox.Open[pgsink.Tx](b.Context(), m.pool, pgoutbox.Options{}); err != nil {
		b.Fatal(err)
	}
	return m
}

func (m *benched) client(opts ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(m.seed), kgo.DefaultProduceTopic(benchTopic))...)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(cl.Close)
	return cl
}

// fill adds entries to each partition of a group: the handler adds one, which is then copied.
func (m *benched) fill(group string, partitions, each int) *memsource.Group {
	const copies = `insert into epochfence.outbox_entry (group_name, topic, partition, message_offset, order_key, scope, idempotency_key, method, url, header, body)
		select group_name, topic, partition, message_offset, order_key || n, scope, idempotency_key || n, method, url, header, body
		from epochfence.outbox_entry, generate_series(2, $2::int) as n where group_name = $1`
	ctx, stop := context.WithCancel(m.Context())
	defer stop()
	box, err := kafkaoutbox.New(m.store, kafkaoutbox.Options{Positions: benchPositions})
	if err != nil {
		m.Fatal(err)
	}
	log := memsource.New("orders", int32(partitions))
	for n := range partitions {
		log.AppendMessages(int32(n), consumer.Message{Value: []byte("m")})
	}
	g := log.Group(group)
	err = consumer.Run(g.UntilApplied(ctx), g.Member("a"), m.sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, msg consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, msg, benchRecord(int(msg.Partition.Number)))
	}), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = m.pool.Exec(ctx, copies, group, each)
	}
	if err == nil {
		_, err = m.pool.Exec(ctx, `analyze epochfence.outbox_entry`)
	}
	if err != nil {
		m.Fatal(err)
	}
	return g
}

// relayed returns the records a second of relays of so many partitions, once each has sent its first batch. With
// them running, it calls after.
func (m *benched) relayed(partitions, each int, after func(), opts ...kgo.Opt) float64 {
	group := m.fill(fmt.Sprint("bench-", time.Now().UnixNano()), partitions, each)
	var mu sync.Mutex
	var at []time.Time
	done := make(chan struct{})
	box, err := kafkaoutbox.New(m.store, kafkaoutbox.Options{
		Client: append(opts, kgo.SeedBrokers(m.seed)), Positions: benchPositions, Batch: benchBatch, Logger: slog.New(slog.DiscardHandler),
		Observe: func(e outbox.Event) {
			if e.Kind != outbox.Delivered {
				m.Error(e.Kind, e.Err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) == partitions*each {
				close(done)
			}
		},
	})
	if err != nil {
		m.Fatal(err)
	}
	ctx, stop := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	handlers := consumer.Each(func(context.Context, pgsink.Tx, consumer.Message, epoch.Epoch) error { return nil }).Background(box.Relay)
	go func() {
		ended <- consumer.Run(ctx, group.Member("b"), m.sink, handlers, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	}()
	select {
	case <-done:
	case err := <-ended:
		m.Fatal(err)
	}
	if after != nil {
		after()
	}
	stop()
	if err := <-ended; err != nil {
		m.Fatal(err)
	}
	return rate(at, partitions*min(benchBatch, each/2))
}

// rate returns the records a second after the first ones.
func rate(at []time.Time, first int) float64 {
	return float64(len(at)-first) / at[len(at)-1].Sub(at[first-1]).Seconds()
}

// table fills a table with the records of so many producers.
func (m *benched) table(producers, each int) {
	for _, sql := range []string{
		`drop table if exists by_hand`,
		`create table by_hand (id bigint generated always as identity primary key, producer int not null, key bytea not null, value bytea not null)`,
		`create index on by_hand (producer, id)`,
		fmt.Sprintf(`insert into by_hand (producer, key, value) select p, convert_to('key-' || p || n, 'UTF8'), convert_to(lpad(n::text, 100, '0'), 'UTF8')
			from generate_series(1, %d) n, generate_series(0, %d) p`, each, producers-1),
		`analyze by_hand`,
	} {
		if _, err := m.pool.Exec(m.Context(), sql); err != nil {
			m.Fatal(err)
		}
	}
}

// take deletes the next records of a producer.
func take(ctx context.Context, tx pgx.Tx, producer int) ([]*kgo.Record, error) {
	rows, err := tx.Query(ctx, `with gone as (delete from by_hand where id in (select id from by_hand where producer = $1 order by id limit $2) returning id, key, value)
		select key, value from gone order by id`, producer, benchBatch)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*kgo.Record, error) {
		r := &kgo.Record{}
		return r, row.Scan(&r.Key, &r.Value)
	})
}

// byHand returns the records a second of so many producers with transactions of the same size. With a table, each
// batch is deleted from it in a transaction of the database around that of Kafka, which loses and doubles none
// unless something fails.
func (m *benched) byHand(producers, each int, table bool) float64 {
	if table {
		m.table(producers, each)
	}
	var mu sync.Mutex
	var at []time.Time
	var all errgroup.Group
	for n := range producers {
		cl := m.client(kgo.TransactionalID(fmt.Sprintf("by-hand-%d-%d", n, time.Now().UnixNano())))
		all.Go(func() error {
			for sent := 0; sent < each; sent += benchBatch {
				var tx pgx.Tx
				var records []*kgo.Record
				var err error
				if table {
					if tx, err = m.pool.Begin(m.Context()); err == nil {
						records, err = take(m.Context(), tx, n)
					}
				} else {
					for i := range benchBatch {
						r := benchRecord(n)
						records = append(records, &kgo.Record{Key: append(r.Key, fmt.Sprint(sent+i)...), Value: r.Value})
					}
				}
				if err != nil || len(records) != benchBatch {
					return fmt.Errorf("%d records: %w", len(records), err)
				}
				if err := cl.BeginTransaction(); err != nil {
					return err
				}
				for _, r := range records {
					cl.Produce(m.Context(), r, func(_ *kgo.Record, err error) {
						if err != nil {
							m.Error(err)
						}
					})
				}
				if err := cl.Flush(m.Context()); err != nil {
					return err
				}
				if err := cl.EndTransaction(m.Context(), kgo.TryCommit); err != nil {
					return err
				}
				if table {
					if err := tx.Commit(m.Context()); err != nil {
						return err
					}
				}
				now := time.Now()
				mu.Lock()
				at = append(at, slices.Repeat([]time.Time{now}, benchBatch)...)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		m.Fatal(err)
	}
	return rate(at, producers*benchBatch)
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// BenchmarkBesideTransactionsByHand compares relays, with all that they do in PostgreSQL, with producers
// whose transactions are as large: without a database, and from a table. They take turns; give it -benchtime 9x.
func BenchmarkBesideTransactionsByHand(b *testing.B) {
	for _, partitions := range []int{1, 8} {
		b.Run(fmt.Sprint("partitions=", partitions), func(b *testing.B) {
			m := newBenched(b)
			var relayed, byHand, fromTable, ratios, tableRatios []float64
			for b.Loop() {
				byHand = append(byHand, m.byHand(partitions, 40*benchBatch/partitions, false))
				relayed = append(relayed, m.relayed(partitions, 40*benchBatch/partitions, nil))
				fromTable = append(fromTable, m.byHand(partitions, 40*benchBatch/partitions, true))
				ratios = append(ratios, relayed[len(relayed)-1]/byHand[len(byHand)-1])
				tableRatios = append(tableRatios, relayed[len(relayed)-1]/fromTable[len(fromTable)-1])
			}
			b.ReportMetric(median(relayed), "records/s")
			b.ReportMetric(median(byHand), "by-hand/s")
			b.ReportMetric(median(fromTable), "from-table/s")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(median(tableRatios), "table-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkAHundredPartitions counts what the producers of a hundred partitions in one process hold, when all have
// sent records and none has closed its session yet, and what they send while they have nothing to do.
func BenchmarkAHundredPartitions(b *testing.B) {
	const partitions, idle = 100, 10 * time.Second
	m := newBenched(b)
	count := &counted{}
	var rates []float64
	var heap, connections, goroutines, requests int64
	for b.Loop() {
		before, running := inUse(), runtime.NumGoroutine()
		rates = append(rates, m.relayed(partitions, 400, func() {
			heap, goroutines, connections = inUse()-before, int64(runtime.NumGoroutine()-running), count.connections.Load()
			since := count.requests.Load()
			<-time.After(idle)
			requests = count.requests.Load() - since
		}, kgo.Dialer(count.dial), kgo.WithHooks(count)))
	}
	b.ReportMetric(median(rates), "records/s")
	b.ReportMetric(float64(heap)/partitions/1024, "KiB/partition")
	b.ReportMetric(float64(goroutines)/partitions, "goroutines/partition")
	b.ReportMetric(float64(connections)/partitions, "connections/partition")
	b.ReportMetric(float64(requests)/idle.Seconds()/partitions, "idle-requests/s/partition")
	b.ReportMetric(0, "ns/op")
}

func inUse() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// counted counts open connections and requests.
type counted struct{ connections, requests atomic.Int64 }

func (c *counted) OnBrokerWrite(kgo.BrokerMetadata, int16, int, time.Duration, time.Duration, error) {
	c.requests.Add(1)
}

func (c *counted) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.connections.Add(1)
	return &countedConn{Conn: conn, of: c}, nil
}

type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.of.connections.Add(-1) })
	return c.Conn.Close()
}
