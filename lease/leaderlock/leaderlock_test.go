package leaderlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// The defaults of client-go, and the TTL that they need.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	ttl           = 22500 * time.Millisecond
)

// process is one of several of which one leads.
type process struct {
	t      *testing.T
	member *lease.Member
	lock   *Lock
	begun  chan context.Context // of each term
	over   chan struct{}        // closed when the elector has returned
	stop   context.CancelFunc

	mu      sync.Mutex
	leaders []string // as the elector has seen them
}

func join(t *testing.T, s cas.Store, o lease.Options) *process {
	t.Helper()
	o.Group, o.TTL, o.Logger = "shop", ttl, slog.New(slog.NewTextHandler(t.Output(), nil))
	m, err := lease.Open(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	lock, err := New(m, "controller")
	if err != nil {
		t.Fatal(err)
	}
	return &process{t: t, member: m, lock: lock}
}

// elect runs an elector until it has stopped leading.
func (p *process) elect(releases bool) *process {
	ctx, stop := context.WithCancel(klog.NewContext(p.t.Context(), klog.Logger{})) // without log lines
	p.begun, p.over, p.stop = make(chan context.Context, 1), make(chan struct{}), stop
	p.t.Cleanup(stop)
	over, begun := p.over, p.begun
	go func() {
		defer close(over)
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: p.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: releases,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { begun <- ctx },
				OnStoppedLeading: func() {},
				OnNewLeader: func(identity string) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.leaders = append(p.leaders, identity)
				},
			},
		})
	}()
	return p
}

func (p *process) leads(within time.Duration) context.Context {
	p.t.Helper()
	select {
	case ctx := <-p.begun:
		return ctx
	case <-time.After(within):
		p.t.Fatalf("does not lead after %s", within)
		return nil
	}
}

func (p *process) follows(long time.Duration) {
	p.t.Helper()
	select {
	case <-p.begun:
		p.t.Fatal("leads")
	case <-time.After(long):
	}
}

// ends waits until the elector has returned.
func (p *process) ends(within time.Duration) {
	p.t.Helper()
	select {
	case <-p.over:
	case <-time.After(within):
		p.t.Fatalf("it still leads after %s", within)
	}
}

func (p *process) saw() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.leaders)
}

func writes(line string) lease.Work[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
		tx.Append("scaled", line)
		return nil
	}
}

func TestOneLeadsAndTheNextWhenItHasReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a := join(t, store, lease.Options{}).elect(true)
		ctx := a.leads(time.Second)
		b := join(t, store, lease.Options{}).elect(true)
		b.follows(10 * time.Minute)
		if err := Do(ctx, a.lock, sink, writes("a")); err != nil {
			t.Error(err)
		}
		if err := Do(ctx, b.lock, sink, writes("b")); !errors.Is(err, ErrNotLeading) {
			t.Errorf("who does not lead: %v", err)
		}
		a.stop()
		a.ends(time.Second)
		ctx = b.leads(retryPeriod * 3)
		if err := Do(ctx, b.lock, sink, writes("b")); err != nil {
			t.Error(err)
		}
		if err := Do(t.Context(), a.lock, sink, writes("a again")); !errors.Is(err, ErrNotLeading) {
			t.Errorf("who has stopped: %v", err)
		}
		if _, err := a.lock.Held(); !errors.Is(err, ErrNotLeading) {
			t.Errorf("who has stopped: %v", err)
		}
		if got := sink.List("scaled"); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%q", got)
		}
		synctest.Wait() // client-go says it on a goroutine of its own
		if saw := b.saw(); !slices.Equal(saw, []string{a.lock.Identity(), b.lock.Identity()}) {
			t.Errorf("the leaders were %q", saw)
		}
	})
}

// The leader is frozen in its work until another one has led and done it, and thawed. What is to be
// done is found out by reading, before the freeze. Under leader election alone it is done again.
func TestALeaderThatWasFrozenCommitsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(context.Context, *process, *memsink.Sink, *book, func()) error
		want []string
	}{
		"fenced": {func(ctx context.Context, p *process, s *memsink.Sink, _ *book, freeze func()) error {
			view := s.Open()
			view.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				freeze()
				return do()
			}})
			return Do(ctx, p.lock, view, func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
				if len(s.List("scaled")) == 0 { // outside the transaction: only the fence can refuse it
					tx.Append("scaled", "up")
				}
				return nil
			})
		}, []string{"up"}},
		"under leader election alone": {func(_ context.Context, _ *process, _ *memsink.Sink, b *book, freeze func()) error {
			due := len(b.all()) == 0
			freeze()
			if due {
				b.add("up")
			}
			return nil
		}, []string{"up", "up"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, sink, unfenced := memstore.New(), memsink.New(), &book{}
				way, cut := leasetest.Cuttable(store)
				a := join(t, way, lease.Options{}).elect(false)
				ctx := a.leads(time.Second)
				b := join(t, store, lease.Options{}).elect(false)
				frozen, thawed, done := make(chan func()), make(chan struct{}), make(chan error, 1)
				go func() {
					done <- c.do(ctx, a, sink, unfenced, func() {
						frozen <- cut()
						<-thawed
					})
				}()
				mend := <-frozen
				if err := c.do(b.leads(2*ttl), b, sink, unfenced, func() {}); err != nil {
					t.Error(err)
				}
				mend()
				close(thawed)
				if err := <-done; name == "fenced" && (!errors.Is(err, epoch.ErrStale) || !errors.Is(err, lease.ErrLost)) {
					t.Errorf("the frozen one: %v", err)
				}
				if got := append(sink.List("scaled"), unfenced.all()...); !slices.Equal(got, c.want) {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// book is a database that compares nothing.
type book struct {
	mu    sync.Mutex
	lines []string
}

func (b *book) add(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
}

func (b *book) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// The lease is taken away. client-go sees that nobody has it, and would lead on.
func TestATermIsNotContinuedUnderAnotherLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a := join(t, store, lease.Options{}).elect(false)
		ctx := a.leads(time.Second)
		if err := Do(ctx, a.lock, sink, writes("before")); err != nil {
			t.Fatal(err)
		}
		item, err := store.Get(t.Context(), cas.Join("shop", "lease", "resource", "controller", "0"))
		if err == nil {
			err = store.Delete(t.Context(), item)
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(retryPeriod)
		if _, _, err := a.lock.Get(t.Context()); !errors.Is(err, lease.ErrLost) {
			t.Errorf("get: %v", err)
		}
		if err := Do(ctx, a.lock, sink, writes("after")); !errors.Is(err, lease.ErrLost) {
			t.Errorf("do: %v", err)
		}
		a.ends(renewDeadline + retryPeriod)
		b := join(t, store, lease.Options{}).elect(false)
		b.leads(5 * retryPeriod) // the first tries may meet the store's memory of the deletion
		if got := sink.List("scaled"); !slices.Equal(got, []string{"before"}) {
			t.Errorf("%q", got)
		}
	})
}

// The lease is kept for LeaseDuration, as one that client-go does not renew any more.
func TestALeaseThatIsNotReleasedIsFreeAfterLeaseDuration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a := join(t, store, lease.Options{}).elect(false)
		a.leads(time.Second)
		b := join(t, store, lease.Options{}).elect(false)
		a.stop()
		a.ends(time.Second)
		if err := Do(t.Context(), a.lock, sink, writes("late")); !errors.Is(err, ErrNotLeading) {
			t.Errorf("who has stopped: %v", err)
		}
		b.follows(leaseDuration)
		b.leads(3 * retryPeriod) // client-go tries every 1 to 2.2 of them
	})
}

func TestAProcessThatLeadsAgainHasANewLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a := join(t, store, lease.Options{}).elect(false)
		a.leads(time.Second)
		before, err := a.lock.Held()
		if err != nil {
			t.Fatal(err)
		}
		a.stop()
		a.ends(time.Second)
		a.elect(false)
		ctx := a.leads(2 * retryPeriod) // it need not wait for itself
		now, err := a.lock.Held()
		if err != nil || now == before || before.Err() == nil || now.Err() != nil {
			t.Errorf("%v, before %v", err, before.Err())
		}
		<-time.After(2 * leaseDuration) // the end of the first term does not end the second
		if err := Do(ctx, a.lock, sink, writes("again")); err != nil {
			t.Error(err)
		}
	})
}

// At the worst moment, the last renewal of the registration is a third of TTL old.
func TestALeaderThatCannotRenewHasStoppedBeforeAnotherLeads(t *testing.T) {
	for n := range 16 {
		bubble.Test(t, func(t *testing.T) {
			store := memstore.New()
			way, cut := leasetest.Cuttable(store)
			a := join(t, way, lease.Options{}).elect(false)
			ctx := a.leads(time.Second)
			b := join(t, store, lease.Options{}).elect(false)
			<-time.After(time.Minute + time.Duration(n)*500*time.Millisecond)
			mend := cut()
			defer mend()
			b.leads(ttl + 3*retryPeriod)
			if ctx.Err() == nil {
				t.Errorf("cut after %d half seconds: two lead", n)
			}
		})
	}
}

func TestATTLThatIsTooShortForLeaseDurationIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := join(t, memstore.New(), lease.Options{})
		for seconds, fits := range map[int]bool{15: true, 16: false} {
			r := resourcelock.LeaderElectionRecord{HolderIdentity: p.lock.Identity(), LeaseDurationSeconds: seconds}
			if err := p.lock.Create(t.Context(), r); (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "want a lease.Options.TTL of at least 24s") {
				t.Errorf("%d s: %v", seconds, err)
			}
		}
	})
}

func TestTheRecordIsThatOfTheHolder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := join(t, store, lease.Options{Name: "pod"}), join(t, store, lease.Options{Name: "pod"})
		if _, _, err := b.lock.Get(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("before: %v", err)
		}
		a.elect(true)
		a.leads(time.Second)
		h, err := a.lock.Held()
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		r, raw, err := b.lock.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.HolderIdentity != a.lock.Identity() || r.HolderIdentity == b.lock.Identity() || r.LeaderTransitions != int(h.Generation()) || time.Since(r.AcquireTime.Time) > 2*time.Second {
			t.Errorf("%+v", r)
		}
		<-time.After(time.Millisecond)
		if _, again, err := b.lock.Get(t.Context()); err != nil || slices.Equal(raw, again) {
			t.Errorf("client-go takes a leader that lives for dead: %s, %v", again, err)
		}
		a.stop()
		a.ends(time.Second)
		<-time.After(time.Second)
		if _, _, err := b.lock.Get(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("after: %v", err)
		}
	})
}

func TestANameThatTheGroupSharesIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := join(t, memstore.New(), lease.Options{Resources: map[string]int32{"orders": 4}})
		for _, name := range []string{"", "orders"} {
			if _, err := New(p.member, name); err == nil || !strings.Contains(err.Error(), "lease.Options.Resources") {
				t.Errorf("%q: %v", name, err)
			}
		}
		if got := p.lock.Describe(); got != "shop/controller" {
			t.Errorf("%q", got)
		}
	})
}
