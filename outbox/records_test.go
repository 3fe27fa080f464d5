package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
)

func TestRecordsMessagesAndRequestsShareAStoreOnSQLite(t *testing.T) { shared(t, sqliteLedger(t)) }
func TestRecordsMessagesAndRequestsShareAStoreOnPostgres(t *testing.T) {
	shared(t, postgresLedger(t))
}
func TestRecordsMessagesAndRequestsShareAStoreOfItems(t *testing.T) { shared(t, storeLedger(t)) }

// shared takes a partition from a member that does not hear of it, again and again, while three relays
// send records to a Kafka in memory, messages to a NATS, and requests to a receiver.
func shared[TX any](t *testing.T, l *ledger[TX]) {
	t.Parallel()
	const rounds = 10
	var mu sync.Mutex
	var got []string
	receiver := httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(body))
	}), httpfence.Options{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(receiver.Close)
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "epochfence-positions", "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	seeds := kgo.SeedBrokers(kafka.ListenAddrs()...)
	js := natstest.Start(t).JetStream(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out", "epochfence-positions.OUT.>"}, AllowAtomicPublish: true})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	group := log.Group(memsource.DefaultGroup)
	group.Script()
	members := []*memsource.Member{group.Member("a"), group.Member("b")}
	for _, m := range members {
		records, err := kafkaoutbox.New(l.Store, kafkaoutbox.Options{Client: []kgo.Opt{seeds}, Batch: 3,
			RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		requests, err := outbox.New(l.Store, outbox.Options[TX]{RetryMin: time.Millisecond, RetryMax: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := natsoutbox.Open(t.Context(), l.Store, natsoutbox.Options{JetStream: js, Stream: "OUT", Batch: 3,
			RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		handlers := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			body := string(m.Value)
			if body[:1] == "c" {
				return requests.Add(ctx, tx, m, outbox.Entry{Key: body[:1], Scope: body[:1], URL: receiver.URL, Body: []byte(body)})
			}
			if body[:1] == "d" {
				return messages.Add(ctx, tx, m, natsoutbox.Message{Subject: "out", Key: body[:1], Data: []byte(body)})
			}
			return records.Add(ctx, tx, m, kafkaoutbox.Record{Topic: "out", Key: []byte(body[:1]), Value: []byte(body)})
		}).Background(records.Relay).Background(messages.Relay).Background(requests.Relay)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- consumer.Run(ctx, m, l.Sink, handlers, l.options()) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	left := func() []operate.OutboxEntry {
		es, err := l.Operator.OutboxEntries(t.Context(), operate.OutboxQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if e.Method != http.MethodPost && !slices.Contains([]string{"kafka://out", "kafka://epochfence-positions", "nats://out", "nats://epochfence-positions.OUT"}, e.URL) {
				t.Errorf("operators see %+v", e)
			}
		}
		return es
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		tick, limit := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
		defer tick.Stop()
		for !ok() {
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("not within a minute: %s; left: %+v", what, left())
			}
		}
	}
	var want []string
	for n := range rounds {
		for _, account := range []string{"a", "b", "c", "d", "a"} {
			want = append(want, fmt.Sprintf("%s/%02d", account, len(want)))
			log.Append(0, want[len(want)-1])
		}
		p := epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"}
		group.Grant(members[n%2], "orders", 0)
		until("some messages are applied", func() bool {
			f, err := epoch.FenceOf(t.Context(), l.Sink, p)
			return err == nil && int(f.Next) >= len(want)-2
		})
	}
	until("all messages are applied, and nothing is left", func() bool {
		f, err := epoch.FenceOf(t.Context(), l.Sink, epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"})
		return err == nil && int(f.Next) == len(want) && len(left()) == 0
	})
	reader, err := kgo.NewClient(seeds, kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mu.Lock()
	defer mu.Unlock()
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"out"}})
	if err != nil {
		t.Fatal(err)
	}
	for range c.CachedInfo().NumPending {
		m, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(m.Data()))
	}
	for len(got) < len(want) && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	byAccount := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	slices.SortStableFunc(got, byAccount)
	if slices.SortStableFunc(want, byAccount); !slices.Equal(got, want) {
		t.Errorf("the effects are %q, want %q", got, want)
	}
}
