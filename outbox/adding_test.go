package outbox_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// A conversation continues by itself: no message comes, and no other claim, after the one
// that began it.
func TestWhatOnAnswerAndOnRefusedAddIsSentAtOnce(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { converse(t, sqliteLedger(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { converse(t, postgresLedger(t)) })
	t.Run("a store", func(t *testing.T) { converse(t, storeLedger(t)) })
}

func converse[TX any](t *testing.T, l *ledger[TX]) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var mu sync.Mutex
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, string(body)); string(body) == "b" {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer srv.Close()
	var box *outbox.Box[TX]
	next := map[string]string{"a": "b", "b": "c", "c": "d"}
	goOn := func(ctx context.Context, tx TX, e outbox.Sent, _ outbox.Answer) error {
		if n := next[string(e.Body)]; n != "" { // under another key, the first one's too
			return box.Add(ctx, tx, e.Message(),
				outbox.Entry{Key: "key " + n, Scope: "s", URL: srv.URL, Body: []byte(n)})
		}
		return nil
	}
	box, err := outbox.New(l.Store, outbox.Options[TX]{
		OnAnswer: goOn, OnRefused: goOn, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	topic := memsource.New("payments", 1)
	topic.Send("", "a")
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		err := consumer.Run(ctx, topic.Group("billing").Member("a"), l.Sink, consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			return box.Add(ctx, tx, m, outbox.Entry{Key: "key a", Scope: "s", URL: srv.URL, Body: m.Value})
		}).Background(box.Relay), l.options())
		if err != nil {
			t.Error(err)
		}
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(50 * time.Second) // nothing looks later: what is left then stays
	for {
		mu.Lock()
		said := slices.Clone(got)
		mu.Unlock()
		if len(said) == 4 && l.left(t) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("received %q, %d entries left", said, l.left(t))
		}
	}
}
