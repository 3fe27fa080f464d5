package bench

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// BenchmarkRun compares consumer.Run, with a source that costs nothing, and calling the
// sink directly with the same batches and the same handler.
func BenchmarkRun(b *testing.B) {
	for _, durable := range []bool{true, false} {
		for _, batch := range []int{1, 256} {
			b.Run(fmt.Sprintf("fsync=%v/batch=%d", durable, batch), func(b *testing.B) { benchmarkRun(b, durable, batch) })
		}
	}
}

func benchmarkRun(b *testing.B, durable bool, batch int) {
	pool := open(b, durable)
	direct, run := newFenced(b, pool, "direct", batch), newEndToEnd(b, pool, batch)
	const transactions = 20
	took := rounds(b,
		variant{"direct", func() { direct.handle(b, transactions) }},
		variant{"run", func() { run.consume(transactions) }},
	)
	run.stop()
	direct.check(b)
	run.check(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rate(took, "run", transactions*batch), "run-msg/s")
	b.ReportMetric(speed(took, "run", "direct"), "run/direct")
}

// handle commits messages by calling the sink, with the handler that
// consumer.Run is given.
func (f *fenced) handle(b *testing.B, transactions int) {
	for range transactions {
		ms := messages(epoch.Partition{}, f.next, f.batch).Messages
		err := f.sink.Commit(b.Context(), f.advance(), func(ctx context.Context, tx pgsink.Tx) error {
			return f.apply(ctx, tx, ms, f.fence.Epoch)
		})
		if err != nil {
			b.Fatal(err)
		}
		f.next += int64(f.batch)
	}
}

func messages(p epoch.Partition, from int64, count int) consumer.Batch {
	ms := make([]consumer.Message, count)
	for i := range ms {
		id := from + int64(i)
		ms[i] = consumer.Message{Partition: p, Offset: epoch.Offset(id), Value: strconv.AppendInt(nil, id, 10)}
	}
	return consumer.Batch{Messages: ms, Next: epoch.Offset(from + int64(count)), Mark: epoch.NoMark}
}

// apply is the handler.
func (a *applied) apply(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
	ids, accounts, amounts := make([]int64, len(ms)), make([]int32, len(ms)), make([]int32, len(ms))
	for i, m := range ms {
		id, err := strconv.ParseInt(string(m.Value), 10, 64)
		if err != nil {
			return consumer.Permanent(err)
		}
		ids[i], accounts[i], amounts[i] = id, int32(id%100), int32(id%7)
	}
	_, err := tx.Exec(ctx, a.insert(), ids, accounts, amounts)
	return err
}

// endToEnd is a consumer.Run that goes on through all rounds: each feeds it
// batches and waits until the last message is applied.
type endToEnd struct {
	*applied
	feed *feed
	last atomic.Int64 // the round's end
	done chan struct{}
	stop func()
}

func newEndToEnd(b *testing.B, pool *pgxpool.Pool, batch int) *endToEnd {
	sink, err := pgsink.Open(b.Context(), pool, pgsink.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := &endToEnd{applied: newApplied(b, pool, "run", batch), done: make(chan struct{}), feed: &feed{
		origin:  epoch.Origin{Partition: epoch.Partition{Group: "bench", Topic: "run"}, Log: "log", Source: "bench"},
		batches: make(chan consumer.Batch, 1), drain: make(chan struct{}),
	}}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- consumer.Run(ctx, e.feed, sink, consumer.Batches(e.apply), consumer.Options{
			MaxBatch: batch, Observe: e.Observe, Logger: slog.New(slog.DiscardHandler),
		})
	}()
	e.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	return e
}

// Observe waits for the last message of a round.
func (e *endToEnd) Observe(ev consumer.Event) {
	if a, ok := ev.(consumer.Advanced); ok && int64(a.To) == e.last.Load() {
		e.done <- struct{}{}
	}
}

func (e *endToEnd) consume(transactions int) {
	e.last.Store(e.next + int64(transactions*e.batch))
	for range transactions {
		e.feed.batches <- messages(e.feed.origin.Partition, e.next, e.batch)
		e.next += int64(e.batch)
	}
	<-e.done
}
