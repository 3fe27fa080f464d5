package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// BenchmarkRecordsForKafka compares the relay from PostgreSQL with transactions of franz-go by hand, in batches of
// 1,000 records of 100 bytes, one after the other.
func BenchmarkRecordsForKafka(b *testing.B) {
	const entries, batch = 10_000, 1000
	kafka := kafkatest.Start(b, kafkatest.Config{})
	seed := kgo.SeedBrokers(kafka.Addr)
	cl, err := kgo.NewClient(seed)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Close)
	if _, err := kadm.NewClient(cl).CreateTopics(b.Context(), 1, 1, nil, "epochfence-positions", "out"); err != nil {
		b.Fatal(err)
	}
	value := bytes.Repeat([]byte("v"), 100)
	b.Run("by hand", func(b *testing.B) {
		tx, err := kgo.NewClient(seed, kgo.TransactionalID("by-hand"))
		if err != nil {
			b.Fatal(err)
		}
		defer tx.Close()
		for b.Loop() {
			for range entries / batch {
				if err := tx.BeginTransaction(); err != nil {
					b.Fatal(err)
				}
				var rs []*kgo.Record
				for n := range batch {
					rs = append(rs, &kgo.Record{Topic: "out", Key: fmt.Append(nil, n), Value: value})
				}
				if err := tx.ProduceSync(b.Context(), rs...).FirstErr(); err != nil {
					b.Fatal(err)
				}
				if err := tx.EndTransaction(b.Context(), kgo.TryCommit); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(entries*b.N)/b.Elapsed().Seconds(), "records/s")
	})
	b.Run("relay", func(b *testing.B) {
		l := postgresLedger(b)
		for b.Loop() {
			b.StopTimer()
			box, err := kafkaoutbox.New(l.Store, kafkaoutbox.Options{Client: []kgo.Opt{seed}})
			if err != nil {
				b.Fatal(err)
			}
			log, added := memsource.New("orders", 1), make(chan struct{}, 100)
			begin := make(chan struct{})
			handlers := consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
				for n := range 1000 {
					if err := box.Add(ctx, tx, m, kafkaoutbox.Record{Topic: "out", Key: fmt.Append(nil, n), Value: value}); err != nil {
						return err
					}
				}
				added <- struct{}{}
				return nil
			}).Background(func(ctx context.Context, claim consumer.Background[pgsink.Tx]) {
				<-begin
				box.Relay(ctx, claim)
			})
			for n := range entries / 1000 {
				log.Append(0, fmt.Sprint(n))
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() {
				done <- consumer.Run(ctx, log.Member("a"), l.Sink, handlers, consumer.Options{Logger: slog.New(slog.DiscardHandler), BatchTimeout: time.Minute, MaxBatch: 1})
			}()
			for range entries / 1000 {
				<-added
			}
			b.StartTimer()
			close(begin)
			tick := time.NewTicker(5 * time.Millisecond)
			for l.left(b) > 0 {
				<-tick.C
			}
			tick.Stop()
			b.StopTimer()
			cancel()
			<-done
			b.StartTimer()
		}
		b.ReportMetric(float64(entries*b.N)/b.Elapsed().Seconds(), "records/s")
	})
}
