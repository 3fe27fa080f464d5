package lease

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
)

const testTTL = 15 * time.Second

var errWire = errors.New("the connection was lost")

type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(p))
	return len(p), nil
}

// with lists the lines that have all words.
func (s *said) with(words ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, line := range s.lines {
		if hasAll(line, words) {
			found = append(found, line)
		}
	}
	return found
}

func hasAll(line string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
}

func (s *said) String() string { return strings.Join(s.with(), "") }

// testMember is one process of a group, on a way of its own.
type testMember struct {
	*Member
	*way
	t   *testing.T
	log *said

	mu   sync.Mutex
	runs map[*Held]bool // the leases whose own has not returned
	took int            // how many there were
	stop func()         // ends Run, and waits for it
}

// sharing is an option.
func sharing(n int32) func(*Options) {
	return func(o *Options) { o.Resources = map[string]int32{"orders": n} }
}

func testOptions(log *said, change ...func(*Options)) Options {
	o := Options{
		Group: "billing", TTL: testTTL, MaxStall: -1, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Removal: func(key string) string { return "remove " + key },
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func join(t *testing.T, s *memstore.Store, change ...func(*Options)) *testMember {
	t.Helper()
	return joinBy(t, wayTo(s), change...)
}

func joinBy(t *testing.T, w *way, change ...func(*Options)) *testMember {
	t.Helper()
	return joinOn(t, w, w, change...)
}

// joinOn makes a member of a store that is reached by a way.
func joinOn(t *testing.T, w *way, s cas.Store, change ...func(*Options)) *testMember {
	t.Helper()
	m := &testMember{way: w, t: t, log: &said{}, runs: map[*Held]bool{}}
	var err error
	if m.Member, err = Open(t.Context(), s, testOptions(m.log, change...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.leave)
	return m
}

// leave ends the member, as a process does that ends in order.
func (m *testMember) leave() {
	if m.stop != nil {
		m.stop()
	}
	m.Close()
}

// run shares the member's resources. It holds each lease until it is to be given back or is lost.
func (m *testMember) run() *testMember { return m.runWith(holds) }

func holds(h *Held) {
	select {
	case <-h.Draining():
	case <-h.Context().Done():
	}
}

func (m *testMember) runWith(own func(*Held)) *testMember {
	ctx, stop := context.WithCancel(context.WithoutCancel(m.t.Context()))
	done := make(chan error, 1)
	m.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			m.t.Errorf("run: %v", err)
		}
	})
	go func() {
		done <- m.Run(ctx, func(h *Held) {
			m.mu.Lock()
			m.runs[h] = true
			m.took++
			m.mu.Unlock()
			own(h)
			m.mu.Lock()
			delete(m.runs, h)
			m.mu.Unlock()
		})
	}()
	return m
}

// holding returns the leases that are held, in order.
func (m *testMember) holding() []*Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Held
	for h := range m.runs {
		if h.Err() == nil {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *Held) int { return a.compare(b.Resource) })
	return all
}

// draining counts the leases that are to be given back.
func (m *testMember) draining() (n int) {
	for _, h := range m.holding() {
		if ready(h.Draining()) {
			n++
		}
	}
	return n
}

func (m *testMember) taken() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.took
}

func ready(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// locks acquires a lock, in time.
func (m *testMember) locks(name string) *Held {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*testTTL)
	defer cancel()
	h, err := m.Acquire(ctx, name)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

// comesTo waits until the member holds that many.
func (m *testMember) comesTo(n int, within time.Duration) {
	m.t.Helper()
	until(m.t, within, func() bool { return len(m.holding()) == n })
}

func confirms(t *testing.T, h *Held) int64 {
	t.Helper()
	g, err := h.Confirm(t.Context())
	if err != nil {
		t.Fatalf("confirm: %v", err)
	}
	return g
}

// until polls, in the time of the bubble, and returns how long it took.
func until(t *testing.T, within time.Duration, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > within {
			t.Fatalf("not within %v", within)
		}
		passes(10 * time.Millisecond)
	}
	return time.Since(began)
}

// passes lets time pass.
func passes(d time.Duration) { <-time.After(d) }

// lose waits until a lease is lost, and returns why.
func lose(t *testing.T, h *Held, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), within)
	defer cancel()
	if <-ctx.Done(); h.Context().Err() == nil {
		t.Fatalf("%s was not lost within %v", h.Resource, within)
	}
	if err := context.Cause(h.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("the cause is %v, want ErrLost", err)
	}
	return h.Err()
}

// look returns what a key holds.
func look(t *testing.T, s cas.Store, key string) cas.Item {
	t.Helper()
	item, err := s.Get(context.WithoutCancel(t.Context()), key)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

// put writes a value, whatever the key holds, as anybody can who may write to the store.
func put(t *testing.T, s cas.Store, key, value string) cas.Item {
	t.Helper()
	item, err := s.Swap(t.Context(), look(t, s, key), []byte(value), nil)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func remove(t *testing.T, s cas.Store, key string) {
	t.Helper()
	if err := s.Delete(t.Context(), look(t, s, key)); err != nil {
		t.Fatal(err)
	}
}

// leaseKey and memberKey are keys of the group "billing".
func leaseKey(n string) string { return "billing/lease/resource/orders/" + n }

func memberKey(id string) string { return "billing/lease/member/" + id }
