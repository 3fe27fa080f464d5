package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
)

func TestPeopleOperateTheOutboxOnPostgres(t *testing.T) {
	t.Parallel()
	testOperated(t, postgresLedger(t))
}
func TestPeopleOperateTheOutboxOnSQLite(t *testing.T) { t.Parallel(); testOperated(t, sqliteLedger(t)) }
func TestPeopleOperateTheOutboxOnAStore(t *testing.T) { t.Parallel(); testOperated(t, storeLedger(t)) }

// testOperated has a receiver refuse five entries, which then wait for a day, and people
// act on them beside the relay.
func testOperated[TX any](t *testing.T, l *ledger[TX]) {
	var (
		mu    sync.Mutex
		came  []string
		fixed atomic.Bool
	)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !fixed.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		came = append(came, string(body))
	}))
	defer receiver.Close()
	arrived := func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(came) }
	refused := make(chan struct{}, 100)
	box, err := outbox.New(l.store, outbox.Options[TX]{
		RetryMin: 24 * time.Hour, RetryMax: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler),
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
	for i := range 5 {
		log.Append(0, fmt.Sprint(i))
	}
	h := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		e := outbox.Entry{
			Scope: "account/" + string(m.Value), URL: strings.Replace(receiver.URL, "http://", "http://user:secret@", 1) + "/pay?token=secret",
			Header: http.Header{"Authorization": {"secret"}}, Body: m.Value,
		}
		if m.Offset >= 3 {
			e.Key = "in order"
		}
		return box.Add(ctx, tx, m, e)
	}).Background(box.Relay)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, log.Member("a"), l.sink, h, l.options())
	}()
	for range 4 { // the last waits behind the one before it
		<-refused
	}

	p := epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"}
	entries := func(q operate.OutboxQuery) []operate.OutboxEntry {
		t.Helper()
		es, err := l.op.OutboxEntries(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return es
	}
	es := entries(operate.OutboxQuery{})
	if len(es) != 5 {
		t.Fatalf("%d entries: %+v", len(es), es)
	}
	for i, e := range es {
		if e.Partition != p || e.Scope != fmt.Sprintf("account/%d", i) || e.URL != receiver.URL || e.Header != nil || e.Body != nil || e.IdempotencyKey == "" ||
			e.Method != "POST" || e.AddedAt.IsZero() || e.RetryRequested || (e.Key == "in order") != (i >= 3) {
			t.Errorf("listed: %+v", e)
		}
		whole, err := l.op.OutboxEntry(t.Context(), e.ID)
		if err != nil || !strings.HasSuffix(whole.URL, "token=secret") || whole.Header.Get("Authorization") != "secret" || string(whole.Body) != fmt.Sprint(i) {
			t.Errorf("shown: %+v, %v", whole, err)
		}
	}
	number := int32(0)
	for want, q := range map[int]operate.OutboxQuery{
		2: {Key: "in order"}, 1: {Limit: 1}, 3: {After: es[1].ID}, 0: {Filter: operate.Filter{Group: "nobody"}}, 5: {Filter: operate.Filter{Topic: "orders"}, Number: &number},
	} {
		if got := entries(q); len(got) != want {
			t.Errorf("%+v selects %d, want %d", q, len(got), want)
		}
	}

	do := func(kind operate.OutboxKind, seen operate.OutboxEntry) error {
		return l.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: kind, Seen: seen, By: "anna", Reason: "fixed", TraceID: strings.Repeat("ab", 16)})
	}
	fence, err := l.op.Partition(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	fixed.Store(true)
	if err := errors.Join(do(operate.OutboxDiscard, es[0]), do(operate.OutboxRetry, es[1]), do(operate.OutboxRetry, es[3])); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*operate.OutboxEntry){
		"its idempotency key":         func(e *operate.OutboxEntry) { e.IdempotencyKey = "another" },
		"its partition":               func(e *operate.OutboxEntry) { e.Partition.Number = 1 },
		"its ID":                      func(e *operate.OutboxEntry) { e.ID += 1 << 20 },
		"everything: it is discarded": func(e *operate.OutboxEntry) { *e = es[0] },
	} {
		other := es[2]
		change(&other)
		for _, kind := range []operate.OutboxKind{operate.OutboxDiscard, operate.OutboxRetry} {
			if err := do(kind, other); !errors.Is(err, operate.ErrNoOutboxEntry) {
				t.Errorf("%s of an entry that differs in %s: %v", kind, what, err)
			}
		}
	}
	if err := do("burn", es[2]); !errors.Is(err, operate.ErrAct) {
		t.Errorf("no such act: %v", err)
	}
	if err := l.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: es[2], Reason: "r"}); !errors.Is(err, operate.ErrAct) {
		t.Errorf("nobody: %v", err)
	}

	limit := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(entries(operate.OutboxQuery{})) > 1 {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("after 30 s these are left: %+v; came: %q", entries(operate.OutboxQuery{}), arrived())
		}
	}
	got := arrived()
	if i, j := slices.Index(got, "3"), slices.Index(got, "4"); i < 0 || j < i {
		t.Errorf("came %q", got)
	}
	slices.Sort(got)
	if left := entries(operate.OutboxQuery{}); !slices.Equal(got, []string{"1", "3", "4"}) || left[0].ID != es[2].ID || left[0].RetryRequested {
		t.Errorf("came %q; left %+v", got, left)
	}
	if _, err := l.op.OutboxEntry(t.Context(), es[1].ID); !errors.Is(err, operate.ErrNoOutboxEntry) {
		t.Errorf("what was delivered is there: %v", err)
	}
	ds, err := l.op.History(t.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard}})
	var observed []string
	for _, d := range ds {
		observed = append(observed, fmt.Sprintf("%s %d %s %s %s", d.Kind, d.Entry, d.IdempotencyKey, d.Partition, d.By))
		if d.At.IsZero() || d.Reason != "fixed" || d.TraceID != strings.Repeat("ab", 16) || d.Epoch != fence.Epoch || d.Claim != fence.Claim || d.Owner != fence.Owner {
			t.Errorf("%+v, want the claim of %+v", d, fence.Fence)
		}
	}
	want := []string{
		fmt.Sprintf("outbox-retry %d %s %s anna", es[3].ID, es[3].IdempotencyKey, p), fmt.Sprintf("outbox-retry %d %s %s anna", es[1].ID, es[1].IdempotencyKey, p),
		fmt.Sprintf("outbox-discard %d %s %s anna", es[0].ID, es[0].IdempotencyKey, p),
	}
	if err != nil || !slices.Equal(observed, want) {
		t.Errorf("the audit log is %q, %v; want %q", observed, err, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An entry whose answer OnAnswer could not handle waits as well, with its answer.
func TestAnOperatorHasAnAnswerHandledAgain(t *testing.T) {
	t.Parallel()
	testHandledAgain(t, sqliteLedger(t))
}

func testHandledAgain[TX any](t *testing.T, l *ledger[TX]) {
	var sent atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer receiver.Close()
	var fixed atomic.Bool
	failed, delivered := make(chan struct{}, 100), make(chan struct{}, 100)
	box, err := outbox.New(l.store, outbox.Options[TX]{
		RetryMin: 24 * time.Hour, RetryMax: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler),
		OnAnswer: func(context.Context, TX, outbox.Sent, outbox.Answer) error {
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
	h := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		return box.Add(ctx, tx, m, outbox.Entry{Scope: "s", URL: receiver.URL})
	}).Background(box.Relay)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, log.Member("a"), l.sink, h, l.options()) }()
	<-failed
	es, err := l.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != 1 {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	fixed.Store(true)
	if err := l.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxRetry, Seen: es[0], By: "anna", Reason: "fixed"}); err != nil {
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
	box, err := outbox.New(l.store, outbox.Options[TX]{})
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
	if err := consumer.Run(log.UntilApplied(t.Context()), log.Member("a"), l.sink, h, l.options()); err != nil {
		t.Fatal(err)
	}
	es, err := l.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != len(urls) {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	for i, url := range slices.Sorted(maps.Keys(urls)) {
		if es[i].URL != urls[url] || strings.Contains(fmt.Sprintf("%+v", es[i]), "secret") {
			t.Errorf("%s is listed as %+v", url, es[i])
		}
		if whole, err := l.op.OutboxEntry(t.Context(), es[i].ID); err != nil || whole.URL != url {
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
	box, err := outbox.New(l.store, outbox.Options[TX]{
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
	go func() { done <- consumer.Run(ctx, log.Member("a"), l.sink, h, l.options()) }()
	for range 2 {
		<-refused
	}
	es, err := l.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(es) != 3 {
		t.Fatal(es, err)
	}
	fixed.Store(true) // the next try of the first one succeeds
	if err := l.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: es[1], By: "anna", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
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
