package bench

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// BenchmarkRun compares consumer.Run, with a source in memory, and calling the
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
	messages := 20 * batch
	took := rounds(b,
		variant{"direct", func() {
			for range 20 {
				direct.commit(b)
			}
		}},
		variant{"run", func() { run.consume(messages) }},
	)
	run.stop()
	direct.check(b)
	run.check(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(speed(took, "run", "direct"), "run/direct")
}

// endToEnd is a consumer.Run that goes on through all rounds: each appends to
// the log and waits until the last message is applied.
type endToEnd struct {
	*applied
	log    *memsource.Log
	target chan epoch.Offset
	done   chan struct{}
	stop   func()
}

func newEndToEnd(b *testing.B, pool *pgxpool.Pool, batch int) *endToEnd {
	sink, err := pgsink.Open(b.Context(), pool, pgsink.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := &endToEnd{
		applied: newApplied(b, pool, "run", batch), log: memsource.New("run", 1),
		target: make(chan epoch.Offset, 1), done: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- consumer.RunBatch(ctx, e.log.Member("bench"), sink, e.handle, consumer.Options[pgsink.Tx]{
			MaxBatch: batch, Observer: e, Logger: slog.New(slog.DiscardHandler),
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

func (e *endToEnd) handle(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
	ids, accounts, amounts := make([]int64, len(ms)), make([]int32, len(ms)), make([]int32, len(ms))
	for i, m := range ms {
		id, err := strconv.ParseInt(string(m.Value), 10, 64)
		if err != nil {
			return consumer.Permanent(err)
		}
		ids[i], accounts[i], amounts[i] = id, int32(id%100), int32(id%7)
	}
	_, err := tx.Exec(ctx, e.insert(), ids, accounts, amounts)
	return err
}

// Observe waits for the last message of a round.
func (e *endToEnd) Observe(ev consumer.Event) {
	if a, ok := ev.(consumer.Advanced); ok {
		target := <-e.target
		if a.To < target {
			e.target <- target
			return
		}
		e.done <- struct{}{}
	}
}

func (e *endToEnd) consume(messages int) {
	values := make([]string, messages)
	for i := range values {
		values[i] = strconv.FormatInt(e.next+int64(i), 10)
	}
	e.next += int64(messages)
	e.target <- epoch.Offset(e.next)
	e.log.Append(0, values...)
	<-e.done
}
