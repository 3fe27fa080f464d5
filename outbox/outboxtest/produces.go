package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

// produces takes a partition from a member that does not hear of it, again and again, while both relays send
// records to a Kafka in memory, and requests to a receiver.
func produces[TX any](w *world[TX]) {
	const rounds = 10
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "epochfence-positions", "out"))
	w.must(err)
	w.Cleanup(kafka.Close)
	seeds := kgo.SeedBrokers(kafka.ListenAddrs()...)
	w.up.Store(true)
	log := memsource.New("orders", 1)
	group := log.Group(memsource.DefaultGroup)
	group.Script()
	members := []*memsource.Member{group.Member("a"), group.Member("b")}
	for _, m := range members {
		records, err := kafkaoutbox.New(w.Store, kafkaoutbox.Options{Client: []kgo.Opt{seeds}, Batch: 3, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: quiet})
		w.must(err)
		requests, err := outbox.New(w.Store, outbox.Options[TX]{RetryMin: time.Millisecond, RetryMax: time.Millisecond, Logger: quiet})
		w.must(err)
		w.consumes(m, consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			body := string(m.Value)
			if body[:1] == "c" {
				return requests.Add(ctx, tx, m, outbox.Entry{Key: body[:1], Scope: body[:1], URL: w.receiver.URL, Body: []byte(body)})
			}
			return records.Add(ctx, tx, m, kafkaoutbox.Record{Topic: "out", Key: []byte(body[:1]), Value: []byte(body)})
		}).Background(records.Relay).Background(requests.Relay))
	}
	var want []string
	for n := range rounds {
		for _, account := range []string{"a", "b", "c", "a"} {
			want = append(want, fmt.Sprintf("%s/%02d", account, len(want)))
			log.Append(0, want[len(want)-1])
		}
		left := len(w.left())
		group.Grant(members[n%2], "orders", 0)
		w.await("something is added or sent", func() bool { return len(w.left()) != left })
	}
	w.awaitLeft(0)
	reader, err := kgo.NewClient(seeds, kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	w.must(err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	got := w.arrived()
	for len(got) < len(want) && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	byAccount := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	slices.SortStableFunc(got, byAccount)
	if slices.SortStableFunc(want, byAccount); !slices.Equal(got, want) {
		w.Errorf("the effects are %q, want %q", got, want)
	}
}
