package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// BenchmarkTheRelayBesideABacklog measures how well the relay of one partition
// keeps up while a backlog of messages, each with an entry, is worked off: what
// part of the entries has been settled when the last message has been applied, and
// how long after that the last entry is. The receiver takes 5 ms.
func BenchmarkTheRelayBesideABacklog(b *testing.B) {
	const messages, receiver = 4000, 5 * time.Millisecond
	l := postgresLedger(b)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(receiver) }))
	defer srv.Close()
	var kept float64
	var rest time.Duration
	for n := 0; b.Loop(); n++ {
		ctx, stop := context.WithCancel(b.Context())
		var applied, settled atomic.Int64
		last, all := make(chan struct{}), make(chan struct{})
		group := fmt.Sprint("billing-", n)
		box, err := outbox.New(l.Store, outbox.Options[pgsink.Tx]{
			Logger: slog.New(slog.DiscardHandler),
			Observe: func(e outbox.Event) {
				if settled.Add(1) == messages {
					close(all)
				}
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		topic := memsource.New("payments", 1)
		for i := range messages {
			topic.Send("", fmt.Sprint(i))
		}
		done := make(chan error)
		go func() {
			done <- consumer.Run(ctx, topic.Group(group).Member("a"), l.Sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
				if err := l.insert(ctx, tx, m, "payments", string(m.Value)); err != nil {
					return err
				}
				if applied.Add(1) == messages {
					close(last)
				}
				return box.Add(ctx, tx, m, outbox.Entry{URL: srv.URL, Scope: "s", Body: m.Value})
			}).Background(box.Relay), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
		}()
		<-last
		kept += float64(settled.Load()) / messages
		began := time.Now()
		<-all
		rest += time.Since(began)
		stop()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(kept/float64(b.N), "settled/entry")
	b.ReportMetric(rest.Seconds()/float64(b.N), "s-after-the-last-message")
}
