package natssource

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/natstest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A stream that has taken messages takes no transform, and is one partition. A mirror under the transform
// has the same sequences in several: docs/nats.md says how to continue there.
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
