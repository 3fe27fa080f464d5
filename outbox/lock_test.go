package outbox_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// locked is the work under a lock, whose entries a fenced receiver gets.
type locked struct {
	*testing.T
	ledger *ledger[*sqlsink.Tx]
	leases *memstore.Store
	fence  httpfence.Store

	mu    sync.Mutex
	down  bool
	got   []string // what took effect
	under []epoch.Epoch
	url   string
	heard chan struct{} // has an element after each request
}

func underLock(t *testing.T) *locked {
	t.Helper()
	l := &locked{T: t, ledger: sqliteLedger(t), leases: memstore.New(), fence: httpfence.NewMemory(), heard: make(chan struct{}, 1)}
	fenced := httpfence.Handler(l.fence, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		c, _ := httpfence.CallOf(req.Context())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.got, l.under = append(l.got, string(body)), append(l.under, c.Epoch)
	}), httpfence.Options{Logger: slog.New(slog.DiscardHandler)})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		l.mu.Lock()
		down := l.down
		l.mu.Unlock()
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else {
			fenced.ServeHTTP(w, req)
		}
		select {
		case l.heard <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(srv.Close)
	l.url = srv.URL
	return l
}

func (l *locked) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// awaits waits until all of the entries have taken effect, once each.
func (l *locked) awaits(want ...string) {
	l.Helper()
	limit, again := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer again.Stop()
	for {
		l.mu.Lock()
		got := slices.Clone(l.got)
		l.mu.Unlock()
		if slices.Equal(got, want) && l.ledger.left(l) == 0 {
			return
		}
		select {
		case <-l.heard:
		case <-again.C:
		case <-limit:
			l.Fatalf("%q took effect, %d entries are left; want %q", got, l.ledger.left(l), want)
		}
	}
}

// holder is a process that has the lock.
type holder struct {
	*lease.Claimed[*sqlsink.Tx]
	l     *locked
	box   *outbox.Box[*sqlsink.Tx]
	stop  context.CancelFunc
	ended chan error
}

func (l *locked) holder(name string) *holder {
	l.Helper()
	m, err := lease.Open(l.Context(), l.leases, lease.Options{Group: "billing", Name: name, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	must(l, func() error { return err })
	l.Cleanup(m.Close)
	held, err := m.Acquire(l.Context(), "nightly")
	must(l, func() error { return err })
	claimed, err := lease.Claim(l.Context(), held, l.ledger.Sink)
	must(l, func() error { return err })
	o := outbox.Options[*sqlsink.Tx]{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	box, err := outbox.New(l.ledger.Store, o)
	must(l, func() error { return err })
	return &holder{l: l, Claimed: claimed, box: box}
}

// relays sends what is in the outbox until the holder stops.
func (h *holder) relays() {
	ctx, stop := context.WithCancel(h.l.Context())
	h.stop, h.ended = stop, make(chan error, 1)
	go func() {
		h.ended <- h.Background(ctx, func(ctx context.Context, b epoch.Background[*sqlsink.Tx]) {
			h.box.Relay(ctx, b)
		})
	}()
	h.l.Cleanup(stop)
}

func (h *holder) adds(what string) {
	h.l.Helper()
	must(h.l, func() error {
		return h.Do(h.l.Context(), func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Epoch) error {
			return h.box.Add(ctx, tx, h.Message(), outbox.Entry{Scope: "report", Key: "report", URL: h.l.url, Body: []byte(what)})
		})
	})
}

func TestWhatTheWorkUnderALockAddsIsSentByItsHolderOrTheNext(t *testing.T) {
	t.Parallel()
	l := underLock(t)
	first := l.holder("first")
	first.relays()
	first.adds("one")
	l.awaits("one")
	l.setDown(true)
	first.adds("two") // which the receiver does not take
	first.stop()
	if err := <-first.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Background: %v", err)
	}
	must(t, func() error { return first.Release(t.Context()) })
	l.setDown(false)
	second := l.holder("second")
	second.relays()
	second.adds("three")
	l.awaits("one", "two", "three")
}

func TestAHolderThatLosesItsLockStopsSending(t *testing.T) {
	t.Parallel()
	l := underLock(t)
	first := l.holder("first")
	l.setDown(true)
	first.relays()
	first.adds("one")
	must(t, func() error { return first.Release(t.Context()) })
	if err := <-first.ended; !errors.Is(err, lease.ErrLost) {
		t.Errorf("Background: %v", err)
	}
	second := l.holder("second")
	l.setDown(false)
	second.relays()
	l.awaits("one")
}

// A receiver has seen a higher epoch, because the sink has lost claims. So the next claim is above it.
// An operator's act, too, needs another claim.
func TestTheRelayUnderALockContinuesUnderTheNextClaim(t *testing.T) {
	t.Parallel()
	l := underLock(t)
	h := l.holder("first")
	h.relays()
	h.adds("one")
	l.awaits("one")
	must(t, func() error {
		_, err := l.ledger.Operator.Act(t.Context(), operate.NewAct(operate.ActEvict, h.Fence(), "anna", "for the test"))
		return err
	})
	h.adds("two")
	l.awaits("one", "two")
	seen := h.Epoch() + 1000
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url, http.NoBody)
	must(t, func() error { return err })
	must(t, func() error { return httpfence.Call{Scope: "report", Key: "lost", Epoch: seen}.SetHeaders(req.Header) })
	answer, err := http.DefaultClient.Do(req)
	must(t, func() error { return err })
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	h.adds("three")
	l.awaits("one", "two", "", "three")
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.under[len(l.under)-1]; last <= seen || !slices.IsSorted(l.under) {
		t.Errorf("the epochs were %v; want the last above %d", l.under, seen)
	}
}
