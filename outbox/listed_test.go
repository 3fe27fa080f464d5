package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
)

func TestAListOfEntriesShowsOnlySchemeAndHostOfURLs(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); listURLs(t, postgresLedger(t)) })
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); listURLs(t, sqliteLedger(t)) })
	t.Run("a store", func(t *testing.T) { t.Parallel(); listURLs(t, storeLedger(t)) })
}

func listURLs[TX any](t *testing.T, l *ledger[TX]) {
	urls := map[string]string{
		"https://host:8443/secret":               "https://host:8443",
		"http://secret:secret@host/secret":       "http://host",
		"http://secret@[::1]:80?secret":          "http://[::1]:80",
		"http://host?http://secret@another/":     "http://host",
		"http://host#secret@another":             "http://host",
		"http://host":                            "http://host",
		"http://sec%2Fret:sec%40ret@host/secret": "http://host",
		"http://secret:sec:ret@host/@secret@/":   "http://host",
	}
	box, err := outbox.New(l.Store, outbox.Options[TX]{})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	for _, url := range slices.Sorted(maps.Keys(urls)) {
		log.Append(0, url)
	}
	h := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, m, outbox.Entry{Scope: "s", IdempotencyKey: fmt.Sprint(m.Offset), URL: string(m.Value), Header: http.Header{"Authorization": {"secret"}}, Body: []byte("secret")})
	})
	if err := consumer.Run(log.UntilApplied(t.Context()), log.Member("a"), l.Sink, h, l.options()); err != nil {
		t.Fatal(err)
	}
	es, err := l.Operator.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != len(urls) {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	for i, url := range slices.Sorted(maps.Keys(urls)) {
		if es[i].URL != urls[url] || strings.Contains(fmt.Sprintf("%+v", es[i]), "secret") {
			t.Errorf("%s is listed as %+v", url, es[i])
		}
		if whole, err := l.Operator.OutboxEntry(t.Context(), es[i].ID); err != nil || whole.URL != url {
			t.Errorf("%s is shown as %+v, %v", url, whole, err)
		}
	}
}

// The relay knows of an entry that an operator discards behind the one that it sends.
func TestTheEntryBehindADiscardedOneIsSent(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) { discardInTheMiddle(t, sqliteLedger(t)) })
	t.Run("a store", func(t *testing.T) { discardInTheMiddle(t, storeLedger(t)) })
}

func discardInTheMiddle[TX any](t *testing.T, l *ledger[TX]) {
	var fixed atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !fixed.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer receiver.Close()
	refused := make(chan struct{}, 1000)
	box, err := outbox.New(l.Store, outbox.Options[TX]{
		RetryMin: 500 * time.Millisecond, RetryMax: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Observe: func(e outbox.Event) {
			if e.Kind == outbox.Retrying {
				refused <- struct{}{}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	for i := range 3 {
		log.Append(0, fmt.Sprint(i))
	}
	h := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, m, outbox.Entry{Key: "k", Scope: "s", URL: receiver.URL, Body: m.Value})
	}).Background(box.Relay)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, log.Member("a"), l.Sink, h, l.options()) }()
	for range 2 {
		<-refused
	}
	es, err := l.Operator.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != 3 {
		t.Fatal(es, err)
	}
	if err := l.Operator.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: es[1], By: "anna", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	fixed.Store(true) // the next try of the first one succeeds
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); l.left(t) > 0 && time.Now().Before(end); {
		<-tick.C
	}
	if n := l.left(t); n > 0 {
		t.Errorf("%d entries are left, and nobody sends them", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
