package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

// An answer is about one scope at one receiver, and stops nothing else: neither one that is
// wrong nor one that only an operator can fix.
func TestAStaleAnswerStopsOnlyTheScopeThatItIsAbout(t *testing.T) {
	for name, highest := range map[string]epoch.Epoch{
		"lower than ours": 1,
		"ours":            900,
		"none":            0,
		"out of reach":    math.MaxInt64,
		"just too far":    epoch.MaxAbove + 1,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, fast, ok)
			good := r.url
			poisoned := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if scope := req.Header.Get(httpfence.ScopeHeader); scope == "scope/poisoned" {
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(http.StatusPreconditionFailed)
					_, _ = fmt.Fprintf(w, `{"type":%q,"status":412,"scope":%q,"highest":%d}`, httpfence.TypeStale, scope, highest)
				}
			}))
			for i := range 20 {
				r.url = poisoned
				r.add(fmt.Sprintf("poisoned p%d", i), fmt.Sprintf("other o%d", i))
				r.url = good
				r.add(fmt.Sprintf("elsewhere e%d", i))
			}
			run := r.relay(900)
			r.await("all but what the scope holds up", func() bool {
				return !slices.ContainsFunc(r.db.left(), func(row outbox.Row) bool { return row.Key != "poisoned" })
			})
			first := func(e outbox.Event) bool { return string(e.Body) == "p0" && e.Kind != outbox.Delivered }
			r.await("it is tried again", func() bool {
				return len(slices.DeleteFunc(r.observed(), func(e outbox.Event) bool { return !first(e) })) >= 3
			})
			r.stop(run)
			if len(run.above) > 0 {
				t.Errorf("the partition was claimed again above %d", run.above)
			}
			observed := r.observed()
			e := observed[slices.IndexFunc(observed, first)]
			if want := map[bool]outbox.Kind{true: outbox.Fenced, false: outbox.Retrying}[highest > 900]; e.Kind != want {
				t.Errorf("observed of %v: %v, want %v", e.Kind, e.Err, want)
			}
		})
	}
}

// What an operator has fixed at the receiver continues by itself.
func TestAScopeThatWasLoweredGoesOn(t *testing.T) {
	r := newRig(t, fast, ok)
	store := httpfence.NewMemory()
	r.url = newServer(t, httpfence.Handler(store, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{}))
	seen(t, store, "scope/a", math.MaxInt64)
	r.add("a 1", "a 2", "b 3")
	r.relay(5)
	r.await("the other scope's", func() bool { return len(r.db.left()) == 2 })
	if err := store.ForgetAbove(t.Context(), "scope/a", 5); err != nil {
		t.Fatal(err)
	}
	r.awaitEmpty()
}

// seen has a scope see an epoch.
func seen(t *testing.T, store httpfence.Store, scope string, e epoch.Epoch) {
	t.Helper()
	_, err := store.Serve(t.Context(), httpfence.Call{Scope: scope, Epoch: e, Key: "before"}, httpfence.Fingerprint{},
		func(context.Context) (httpfence.Answer, bool) { return httpfence.Answer{Status: 200}, true })
	if err != nil {
		t.Fatal(err)
	}
}

// Two partitions that use one scope must not continue for ever, each above the other.
func TestTwoPartitionsOfOneScopeDoNotClimbWithoutEnd(t *testing.T) {
	l := sqliteLedger(t)
	url := newServer(t, httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{}))
	var log syncBuffer
	var box *outbox.Box[*sqlsink.Tx]
	again := func(ctx context.Context, tx *sqlsink.Tx, e outbox.Sent, _ outbox.Answer) error {
		return box.Add(ctx, tx, e.Message(), outbox.Entry{Key: "k", Scope: "shared", URL: url})
	}
	box, err := outbox.New(l.Store, outbox.Options[*sqlsink.Tx]{
		RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)), OnAnswer: again,
	})
	if err != nil {
		t.Fatal(err)
	}
	topic := memsource.New("payments", 2)
	group := topic.Group("billing")
	group.Script()
	member := group.Member("a")
	for n := range int32(2) {
		topic.Append(n, "x")
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		err := consumer.Run(ctx, member, l.Sink, consumer.Each(func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return box.Add(ctx, tx, m, outbox.Entry{Key: "k", Scope: "shared", URL: url})
		}).Background(box.Relay), consumer.Options{RetryMin: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Error(err)
		}
	})
	await := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(30 * time.Second)
		for !ok() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("not done: %s:\n%s", what, log.String())
			}
		}
	}
	for n := range int32(2) { // under epochs of their own
		group.SetGeneration(int64(1 + 4*n))
		group.Grant(member, topic.Name(), n)
		await("the partition is claimed", func() bool {
			return count(t, l.db, `SELECT count(*) FROM epochfence_fence WHERE epoch > 0`) == int(n)+1
		})
	}
	await("it is said", func() bool { return strings.Contains(log.String(), "another partition or group") })
	if highest := count(t, l.db, `SELECT max(epoch) FROM epochfence_fence`); highest > 20 {
		t.Errorf("the epochs have climbed to %d", highest)
	}
}

// A sink that was failed over, or restored, has lost claims whose epochs receivers have seen.
func TestAfterAFailoverThatLostClaimsEverythingIsSent(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		l := sqliteLedger(t)
		failover(t, l, func() error {
			_, err := l.db.ExecContext(t.Context(), `UPDATE epochfence_fence SET epoch = 3, lease_generation = 3, claim_id = randomblob(16)`)
			return err
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		l := postgresLedger(t)
		failover(t, l, func() error {
			_, err := l.db.ExecContext(t.Context(), `UPDATE epochfence.fence SET epoch = 3, lease_generation = 3, claim_id = gen_random_uuid()`)
			return err
		})
	})
	t.Run("a store of items", func(t *testing.T) {
		l := storeLedger(t)
		failover(t, l, func() error { return lowerFences(t.Context(), l.items) })
	})
}

// lowerFences gives each fence of a cassink an earlier claim.
func lowerFences(ctx context.Context, items cas.Store) error {
	lowered := 0
	for item, err := range items.List(ctx, "epochfence/fence/") {
		var record map[string]json.RawMessage
		if err == nil {
			err = json.Unmarshal(item.Value, &record)
		}
		if err != nil {
			return err
		}
		record["Epoch"], record["Generation"] = json.RawMessage("3"), json.RawMessage("3")
		if record["Claim"], err = json.Marshal(epoch.NewClaimID()); err != nil {
			return err
		}
		value, err := json.Marshal(record)
		if err != nil {
			return err
		}
		if _, err := items.Swap(ctx, item, value, item.Note); err != nil {
			return err
		}
		lowered++
	}
	if lowered == 0 {
		return errors.New("no fence was found")
	}
	return nil
}

func failover[TX any](t *testing.T, l *ledger[TX], fallBack func() error) {
	const scopes, perScope = 30, 3
	store := httpfence.NewMemory()
	var mu sync.Mutex
	effects := map[string]int{}
	url := newServer(t, httpfence.Handler(store, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		defer mu.Unlock()
		effects[string(body)]++
	}), httpfence.Options{}))
	topic := memsource.New("payments", 1)
	group := topic.Group("billing")
	sent := 0
	send := func() {
		for range perScope {
			for i := range scopes {
				topic.Send("", fmt.Sprintf("scope-%d/%d", i, sent))
				sent++
			}
		}
	}
	process := func() (end func()) {
		box, err := outbox.New(l.Store, outbox.Options[TX]{
			RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		done := make(chan error, 1)
		member := group.Member(fmt.Sprint("from ", sent))
		go func() {
			done <- consumer.Run(ctx, member, l.Sink, consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
				scope, _, _ := strings.Cut(string(m.Value), "/")
				return box.Add(ctx, tx, m, outbox.Entry{Key: scope, Scope: scope, URL: url, Body: m.Value})
			}).Background(box.Relay), l.options())
		}()
		return func() {
			t.Helper()
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	await := func(when string) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(20 * time.Second)
		for {
			mu.Lock()
			n := len(effects)
			mu.Unlock()
			left := l.left(t)
			if n == sent && left == 0 {
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("%s: %d of %d effects, %d entries left", when, n, sent, left)
			}
		}
	}
	group.SetGeneration(80)
	end := process()
	send()
	await("before")
	end()
	for i := range scopes { // each was used under another of the claims that are lost
		seen(t, store, fmt.Sprint("scope-", i), epoch.Epoch(90+i%10))
	}
	group.SetGeneration(1)
	must(t, fallBack)
	send()
	end = process()
	await("after")
	end()
	for body, n := range effects {
		if n != 1 {
			t.Errorf("%s was applied %d times", body, n)
		}
	}
}

// An outage is one state, however many entries wait for its end and however often they
// are tried.
func TestAnOutageIsToldInAFewLines(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log syncBuffer
		var up atomic.Bool
		r := &rig{T: t, db: newDatabase(), url: "http://example.com/"}
		box, err := outbox.New(table{}, outbox.Options[*tx]{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Client: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
				if !up.Load() {
					return nil, errTest
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.box = box
		for i := range 50 {
			r.add(fmt.Sprintf("k%d 1", i), fmt.Sprintf("k%d 2", i))
		}
		r.relay(1)
		lines := func(want int, about ...string) {
			t.Helper()
			synctest.Wait()
			text := log.String()
			for _, s := range about {
				if !strings.Contains(text, s) {
					t.Errorf("no %q in\n%s", s, text)
				}
			}
			if n := strings.Count(text, "\n"); n != want {
				t.Errorf("%d lines, want %d:\n%s", n, want, text)
			}
			log.reset()
		}
		<-time.After(12 * time.Second)
		lines(2, "does not take", "http://example.com")
		<-time.After(time.Hour)
		lines(9, "times=", "keys=50")
		up.Store(true)
		<-time.After(time.Minute)
		lines(2, "over: the receiver http://example.com does not take entries", "times=")
		if left := r.db.left(); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}
