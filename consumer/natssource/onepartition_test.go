package natssource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A stream that has taken messages takes no transform, and is one partition. A mirror under the transform
// has the same sequences in several: docs/move-over.md says how to continue there.
func TestAStreamWithoutATransformIsCarriedOnInAMirrorThatHasOne(t *testing.T) {
	t.Parallel()
	const partitions, accounts, third = 4, 10, 60
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	js := natstest.Start(t).JetStream(t)
	must(t, second(js.CreateStream(ctx, jetstream.StreamConfig{Name: "PAY", Subjects: []string{"pay.*"}})))
	published := 0
	publish := func() {
		for range third {
			must(t, second(js.Publish(ctx, fmt.Sprintf("pay.%d", published%accounts), fmt.Append(nil, published))))
			published++
		}
	}
	sink := memsink.New()
	var (
		mu      sync.Mutex
		applied = map[string][]string{} // by account
		all     int
	)
	run := func(stream Stream, until int) {
		source, err := New(Options{Group: "payments", JetStream: js, Streams: []Stream{stream}, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		running, stop := context.WithCancel(ctx)
		defer stop()
		handle := func(_ context.Context, _ *memsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ms {
				account := string(m.Key[bytes.LastIndexByte(m.Key, '.')+1:])
				applied[account] = append(applied[account], string(m.Value))
				if all++; all == until {
					stop()
				}
			}
			return nil
		}
		must(t, consumer.Run(running, source, sink, consumer.Batches(handle), consumer.Options{Logger: slog.New(slog.DiscardHandler), MaxBatch: 7}))
	}
	publish()
	run(Stream{Name: "PAY"}, 35)
	publish()

	mirror, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "PAY4", Mirror: &jetstream.StreamSource{
		Name: "PAY", SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "pay.*", Destination: "pay.{{partition(4,1)}}.{{wildcard(1)}}"}},
	}})
	must(t, err)
	poll(t, "the mirror has what the stream has", func() bool {
		info, err := mirror.Info(ctx)
		return err == nil && info.State.LastSeq == 2*third
	})
	bucket, err := js.KeyValue(ctx, "epochfence")
	must(t, err)
	at, err := bucket.Get(ctx, "payments.position.PAY.0")
	must(t, err)
	var position struct {
		Next uint64 `json:"next"`
	}
	must(t, json.Unmarshal(at.Value(), &position))
	next := Stream{Name: "PAY4"}
	for n := range partitions {
		must(t, second(bucket.Put(ctx, fmt.Sprintf("payments.position.PAY4.%d", n), fmt.Appendf(nil, `{"next":%d}`, position.Next))))
		next.Filters = append(next.Filters, fmt.Sprintf("pay.%d.*", n))
	}
	publish() // to the same subjects as before
	run(next, 3*third)

	for account := range accounts {
		var want []string
		for i := account; i < published; i += accounts {
			want = append(want, fmt.Sprint(i))
		}
		if got := applied[fmt.Sprint(account)]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("account %d: applied were %v, want %v", account, got, want)
		}
	}
}

// A stream is partitioned in another way: docs/move-over.md says how, and what halts until then.
func TestAStreamThatIsPartitionedInAnotherWayIsAppliedOnce(t *testing.T) {
	t.Parallel()
	const filters, each = 3, 20
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	js := natstest.Start(t).JetStream(t)
	must(t, second(js.CreateStream(ctx, jetstream.StreamConfig{Name: "LOG", Subjects: []string{"log.*"}})))
	publish := func() {
		for n := range filters * each {
			must(t, second(js.Publish(ctx, fmt.Sprintf("log.%d", n%filters), fmt.Append(nil, n))))
		}
	}
	db := memsink.New()
	sink, logger := db.Open(), slog.New(slog.DiscardHandler)
	var mu sync.Mutex // several partitions are observed at a time
	run := func(until func(consumer.Event, int) bool, fs ...string) {
		source, err := New(Options{Group: "g", JetStream: js, Streams: []Stream{{Name: "LOG", Filters: fs}}, Logger: logger})
		must(t, err)
		running, stop := context.WithCancel(ctx)
		defer stop()
		must(t, consumer.Run(running, source, sink, consumer.Each(func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			tx.Append("applied", string(m.Key)+" "+string(m.Value))
			return nil
		}), consumer.Options{Logger: logger, HaltMin: 10 * time.Millisecond, HaltMax: 100 * time.Millisecond, Observe: func(e consumer.Event) {
			mu.Lock()
			defer mu.Unlock()
			if until(e, len(db.List("applied"))) {
				stop()
			}
		}}))
		must(t, ctx.Err())
	}
	applied := func(count int) func(consumer.Event, int) bool {
		return func(_ consumer.Event, n int) bool { return n >= count }
	}
	publish()
	run(applied(filters*each), "log.*")

	names, halted := []string{"log.0", "log.1", "log.2"}, map[int32]*epoch.LogChangedError{}
	run(func(e consumer.Event, _ int) bool {
		var changed *epoch.LogChangedError
		if h, ok := e.(consumer.Halted); ok && errors.As(h.Err, &changed) {
			halted[h.Partition.Number] = changed
		}
		return len(halted) == filters
	}, names...)
	seen, err := sink.Operator().Partition(ctx, epoch.Partition{Group: "g", Topic: "LOG"})
	must(t, err)
	bucket, err := js.KeyValue(ctx, "epochfence")
	must(t, err)
	for n := 1; n < filters; n++ {
		must(t, second(bucket.Put(ctx, fmt.Sprintf("g.position.LOG.%d", n), fmt.Appendf(nil, `{"next":%d}`, seen.Next))))
	}
	rebase := operate.NewAct(operate.ActRebase, seen.Fence, "anna", "three filters")
	rebase.Log, rebase.To = halted[0].Source, &epoch.Position{Offset: seen.Next, Mark: epoch.NoMark}
	must(t, second(sink.Operator().Act(ctx, rebase)))
	publish()
	run(applied(2*filters*each), names...)

	counts := map[string]int{}
	for _, what := range db.List("applied") {
		counts[what]++
	}
	for n := range filters * each {
		if what := fmt.Sprintf("log.%d %d", n%filters, n); counts[what] != 2 {
			t.Errorf("%s was published twice and applied %d times", what, counts[what])
		}
	}
	if len(counts) != filters*each {
		t.Errorf("%d messages were applied, want %d", len(counts), filters*each)
	}
}
