package fenceprom_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate/fenceprom"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// run consumes and relays an outbox. It registers the metrics of both.
func run[TX any](ctx context.Context, source consumer.Source, sink epoch.Sink[TX], h consumer.Handlers[TX], store outbox.Store[TX], r prometheus.Registerer) error {
	s := stats.New()
	if err := r.Register(fenceprom.New(s)); err != nil {
		return err
	}
	if store != nil {
		box, err := outbox.New(store, outbox.Options[TX]{Observe: s.ObserveOutbox, ObserveBacklog: s.ObserveBacklog})
		if err != nil {
			return err
		}
		h = h.Background(box.Relay)
	}
	return consumer.Run(ctx, source, sink, h, consumer.Options{Observe: s.Observe})
}

// watched joins the group of the locks, and has the registry show what happens to them.
func watched(ctx context.Context, store cas.Store, r prometheus.Registerer) (*lease.Member, error) {
	s := stats.New()
	if err := r.Register(fenceprom.New(s)); err != nil {
		return nil, err
	}
	return lease.Open(ctx, store, lease.Options{Group: "billing", Observe: s.ObserveLease})
}

func Example_locks() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	registry := prometheus.NewRegistry()
	member, err := watched(context.Background(), memstore.New(), registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer member.Close()
	work := func(context.Context, *memsink.Tx, epoch.Epoch) error { return nil }
	if err := lease.Do(context.Background(), member, memsink.New(), "nightly", work); err != nil {
		fmt.Println(err)
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "epochfence_lease_work_total") && !strings.HasSuffix(line, " 0\n") {
			fmt.Print(line)
		}
	}
	// Output: epochfence_lease_work_total{outcome="committed",resource="nightly/0"} 1
}

func Example() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table", "a lamp")
	handle := func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil }
	registry := prometheus.NewRegistry()
	err := run(log.UntilApplied(context.Background()), log.Member("a"), memsink.New(), consumer.Each(handle), nil, registry)
	if err != nil {
		fmt.Println(err)
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "epochfence_messages_total") {
			fmt.Print(line)
		}
	}
	// Output: epochfence_messages_total 3
}
