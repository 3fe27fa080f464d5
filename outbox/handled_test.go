package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// An entry whose answer OnAnswer could not handle waits as well, with its answer.
func TestAnOperatorHasAnAnswerHandledAgain(t *testing.T) {
	t.Parallel()
	l := sqliteLedger(t)
	var sent atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer receiver.Close()
	var fixed atomic.Bool
	failed, delivered := make(chan struct{}, 100), make(chan struct{}, 100)
	box, err := outbox.New(l.Store, outbox.Options[*sqlsink.Tx]{
		RetryMin: 24 * time.Hour, RetryMax: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler),
		OnAnswer: func(context.Context, *sqlsink.Tx, outbox.Sent, outbox.Answer) error {
			if !fixed.Load() {
				return errors.New("not yet")
			}
			return nil
		},
		Observe: func(e outbox.Event) {
			switch e.Kind {
			case outbox.Retrying:
				failed <- struct{}{}
			case outbox.Delivered:
				delivered <- struct{}{}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	log.Append(0, "a")
	h := consumer.Each(func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, m, outbox.Entry{Scope: "s", URL: receiver.URL})
	}).Background(box.Relay)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, log.Member("a"), l.Sink, h, l.options()) }()
	<-failed
	es, err := l.Operator.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != 1 {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	fixed.Store(true)
	if err := l.Operator.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxRetry, Seen: es[0], By: "anna", Reason: "fixed"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-delivered:
	case <-time.After(30 * time.Second):
		t.Error("the answer was not handled within 30 s of the request")
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("sent %d times, want once: its answer is known", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
