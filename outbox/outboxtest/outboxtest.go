// Package outboxtest is the suite that every [outbox.Store] must pass. A store's test calls [Run]
// with a function that makes an empty database:
//
//	func TestStore(t *testing.T) {
//		outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[*mysink.Tx] {
//			db := emptyDatabase(t)
//			return outboxtest.Rig[*mysink.Tx]{Sink: mysink.Open(db), Store: mystore.Open(db), Operator: mysink.OpenOperator(db)}
//		})
//	}
package outboxtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/verdict"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// Rig is one empty database.
type Rig[TX any] struct {
	Sink     epoch.Sink[TX]
	Store    outbox.Store[TX]
	Operator operate.Operator
}

// Run runs every history on a database of its own. create makes an empty one, which is removed when
// t ends.
func Run[TX any](t *testing.T, create func(t testing.TB) Rig[TX]) {
	for claim, play := range map[string]func(*world[TX]){
		"entries are read, counted, followed by key and deleted in their own partition alone":   keeps[TX],
		"an entry that commits late is not missed, and keeps the order of its key":              late[TX],
		"while a partition changes hands each entry takes effect once, in the order of its key": handsOver[TX],
		"operators see, retry and discard entries, and the audit log has what they did":         operated[TX],
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			w := &world[TX]{TB: verdict.TB{TB: t}, Rig: create(t)}
			w.receiver = httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(w.receive), httpfence.Options{Logger: quiet}))
			t.Cleanup(w.receiver.Close)
			play(w)
		})
	}
}

var quiet = slog.New(slog.DiscardHandler)

// world is a database and a receiver.
type world[TX any] struct {
	verdict.TB
	Rig[TX]
	receiver *httptest.Server
	up       atomic.Bool // the receiver takes entries; otherwise it answers 503
	refused  atomic.Int32

	mu   sync.Mutex
	came []string // the bodies that were taken
}

func (w *world[TX]) receive(answer http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if !w.up.Load() || err != nil {
		w.refused.Add(1)
		answer.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came = append(w.came, string(body))
}

func (w *world[TX]) arrived() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.came)
}

// runs begins a consumer that adds an entry for each message, until the history ends.
func (w *world[TX]) runs(source consumer.Source, retry time.Duration, entry func(body string) outbox.Entry) {
	w.Helper()
	box, err := outbox.New(w.Store, outbox.Options[TX]{RetryMin: retry, RetryMax: retry, Logger: quiet})
	w.NoError(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, source, w.Sink, consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			return box.Add(ctx, tx, m, entry(string(m.Value)))
		}).Background(box.Relay), consumer.Options{Guarantee: w.Sink.Facts().Guarantee, RetryMin: time.Millisecond, Logger: quiet})
	}()
	w.Cleanup(func() {
		cancel()
		w.NoError(<-done)
	})
}

func (w *world[TX]) entries(q operate.OutboxQuery) []operate.OutboxEntry {
	w.Helper()
	es, err := w.Operator.OutboxEntries(w.Context(), q)
	w.NoError(err)
	return es
}

func (w *world[TX]) await(what string, ok func() bool) {
	w.Helper()
	tick, limit := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			w.Fatalf("not within a minute: %s; left: %+v, came: %q", what, w.entries(operate.OutboxQuery{}), w.arrived())
		}
	}
}

func (w *world[TX]) awaitLeft(n int) {
	w.Helper()
	w.await(fmt.Sprint(n, " entries are left"), func() bool { return len(w.entries(operate.OutboxQuery{})) == n })
}

// claims takes a partition that nobody has claimed.
func (w *world[TX]) claims(p epoch.Partition) epoch.Fence {
	w.Helper()
	o := epoch.Origin{Partition: p, Log: "log", Source: "broker"}
	w.NoError(w.Sink.Seed(w.Context(), []epoch.Start{{Origin: o}}))
	seen, err := w.Sink.Fence(w.Context(), p)
	w.NoError(err)
	f, err := w.Sink.Claim(w.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "test"}))
	w.NoError(err)
	return f
}

// commits runs do for messages up to offset 7.
func (w *world[TX]) commits(f epoch.Fence, do func(ctx context.Context, tx TX) error) {
	w.Helper()
	w.NoError(w.Sink.Commit(w.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, To: 8}}, epoch.TxOptions{}, do))
}

// held runs do as the relay would, beside the messages.
func (w *world[TX]) held(ctx context.Context, f epoch.Fence, do func(ctx context.Context, tx TX) error) error {
	return epoch.CommitHeld(ctx, w.Sink, epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch.TxOptions{}, do)
}

// add adds an entry whose idempotency key is id.
func (w *world[TX]) add(ctx context.Context, tx TX, p epoch.Partition, key, id string) error {
	e := outbox.Entry{Key: key, Scope: "s", IdempotencyKey: id, Method: "POST", URL: "http://host/"}
	return w.Store.Add(ctx, tx, epoch.Message{Partition: p, Offset: 7}, e)
}
