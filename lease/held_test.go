package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

const lockKey = "billing/lease/resource/nightly/0"

// A process that was suspended gets here before its timers run.
func TestADeadlineThatNoTimerHasNoticedCounts(t *testing.T) {
	for what, ask := range map[string]func(h *Held, ctx context.Context) error{
		"Err":     func(h *Held, _ context.Context) error { return h.Err() },
		"Confirm": func(h *Held, ctx context.Context) error { _, err := h.Confirm(ctx); return err },
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := join(t, memstore.New())
				h := m.locks("nightly")
				confirms(t, h)
				before := look(t, m.inner, lockKey).Version
				r := m.current().item
				r.mu.Lock()
				r.deadline = time.Now().Add(-time.Millisecond)
				r.mu.Unlock()
				if err := ask(h, t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, ErrExpired) {
					t.Errorf("%v, want ErrExpired", err)
				}
				if err := lose(t, h, 0); !errors.Is(err, ErrExpired) {
					t.Errorf("lost because of %v", err)
				}
				if look(t, m.inner, lockKey).Version != before {
					t.Error("it was confirmed all the same")
				}
			})
		})
	}
}

// The process stood still while the answer was on its way.
func TestAConfirmationWhoseAnswerComesAfterTheDeadlineCountsAsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		h := m.locks("nightly")
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if !r.swaps("nightly") {
				return do(ctx)
			}
			err := do(ctx)
			i := m.current().item
			i.mu.Lock()
			i.deadline = time.Now().Add(-time.Millisecond)
			i.mu.Unlock()
			return err
		})
		if _, err := h.Confirm(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, ErrExpired) {
			t.Errorf("confirm: %v, want ErrExpired", err)
		}
	})
}

func TestAConfirmationEndsWhenTheLeaseIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		h := m.locks("nightly")
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("nightly") {
				return swallow(ctx, r, do)
			}
			return do(ctx)
		})
		began, done := time.Now(), make(chan error)
		go func() {
			_, err := h.Confirm(t.Context())
			done <- err
		}()
		passes(10 * time.Millisecond)
		put(t, s, memberKey(m.id), `{"ended":true}`)
		err := <-done
		if took := time.Since(began); !errors.Is(err, ErrLost) || took > time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestAConfirmationHasALaterGenerationAndARefusedOneNone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		h := m.locks("nightly")
		last := h.Generation()
		for range 10 {
			g := confirms(t, h)
			if g <= last || h.Generation() != g {
				t.Errorf("generation %d follows %d, the lease has %d", g, last, h.Generation())
			}
			last = g
		}
		put(t, s, lockKey, `{"member":"x","nonce":"n","generation":99}`)
		if g, err := h.Confirm(t.Context()); g != 0 || !errors.Is(err, ErrLost) || !errors.Is(err, errTaken) || !strings.Contains(err.Error(), "lease: confirm nightly/0: ") {
			t.Errorf("confirm: %d, %v", g, err)
		}
		if err := lose(t, h, 0); !errors.Is(err, errTaken) {
			t.Errorf("lost because of %v", err)
		}
	})
}

// Nothing is renewed in a lease's key, so that its holder must hear of what others do to it.
func TestAHolderHearsOfALeaseThatIsNotItsOwnAnyMore(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, s *memstore.Store){
		"taken":   func(t *testing.T, s *memstore.Store) { put(t, s, lockKey, `{"member":"x","nonce":"n","generation":9}`) },
		"deleted": func(t *testing.T, s *memstore.Store) { remove(t, s, lockKey) },
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				h := join(t, s).locks("nightly")
				passes(time.Minute)
				change(t, s)
				if err := lose(t, h, time.Second); !errors.Is(err, errTaken) {
					t.Errorf("lost because of %v", err)
				}
			})
		})
	}
}

// A view that is late shows another value in the key.
func TestALeaseThatOnlyTheViewLacksIsKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		h := m.locks("nightly")
		g := h.Generation()
		m.view.mu.Lock()
		m.view.now.leases[h.Resource] = holder{}
		m.view.mu.Unlock()
		m.balance()
		until(t, time.Second, func() bool { return h.Generation() > g })
		confirms(t, h)
	})
}

func TestAReleaseLosesTheLeaseBeforeItWrites(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		h := m.locks("nightly")
		var before error
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("nightly") {
				before = h.Err()
			}
			return do(ctx)
		})
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(before, ErrLost) {
			t.Errorf("when it was written, the lease was %v", before)
		}
		m.has(refuse)
		if err := h.Release(t.Context()); err != nil { // does nothing
			t.Error(err)
		}
		if err := h.Err(); !errors.Is(err, errEnded) {
			t.Errorf("its end is %v", err)
		}
	})
}

func TestAReleaseThatFailsSaysSoAndIsMadeAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		h := m.locks("nightly")
		m.first(func(r request) bool { return r.swaps("nightly") }, refuse)
		if err := h.Release(t.Context()); !errors.Is(err, errWire) || !strings.Contains(err.Error(), "lease: release nightly/0: ") {
			t.Errorf("release: %v", err)
		}
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("after its release: %v", err)
		}
		if took := until(t, testTTL, func() bool { l, _ := leaseOf(look(t, s, lockKey).Value); return l.Member == "" }); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// What is released had been another's for long.
func TestALeaseThatAnotherHasIsNotReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		h := join(t, s).locks("nightly")
		theirs := put(t, s, lockKey, `{"member":"x","nonce":"n","generation":9}`)
		if err := lose(t, h, time.Second); !errors.Is(err, errTaken) {
			t.Fatal(err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if now := look(t, s, lockKey); now.Version != theirs.Version {
			t.Errorf("the key holds %s", now.Value)
		}
	})
}

func TestAHolderWithoutProgressLosesItsLease(t *testing.T) {
	const stall = 20 * time.Second
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m, other := join(t, s, func(o *Options) { o.MaxStall = stall }), join(t, s)
		h := m.locks("nightly")
		passes(stall * 3 / 4)
		h.Progress()
		passes(stall * 3 / 4)
		confirms(t, h) // is progress, too
		passes(stall - time.Second)
		if err := h.Err(); err != nil {
			t.Fatalf("with progress: %v", err)
		}
		if err := lose(t, h, 2*time.Second); !errors.Is(err, ErrStalled) {
			t.Errorf("lost because of %v", err)
		}
		if _, err := h.Confirm(t.Context()); !errors.Is(err, ErrStalled) {
			t.Errorf("confirm: %v", err)
		}
		began := time.Now()
		other.locks("nightly") // as the holder does not return
		if took := time.Since(began); took > testTTL+2*time.Second {
			t.Errorf("it was taken after %v", took)
		}
		if lines := m.log.with("level=ERROR", "no progress", "resource=nightly/0", "for=20s"); len(lines) != 1 {
			t.Errorf("it is said %d times:\n%s", len(lines), m.log)
		}
		unlimited := other.locks("another")
		passes(time.Hour)
		confirms(t, unlimited)
	})
}

// One that holds on to what it has lost holds up nobody for longer than a TTL, and does not get it twice.
func TestAHolderThatDoesNotReturnKeepsTheResourceForATTLAndNoOtherBeginsBesideIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		stuck := make(chan struct{})
		a := join(t, s, sharing(1)).runWith(func(h *Held) { holds(h); <-stuck })
		a.comesTo(1, testTTL)
		h := a.holding()[0]
		h.lose(lost(ErrStalled))
		passes(3 * testTTL)
		if n := a.taken(); n != 1 {
			t.Errorf("%d holders while the first has not returned", n)
		}
		if l, ok := leaseOf(look(t, s, leaseKey("0")).Value); !ok || l.Member != "" {
			t.Errorf("its lease is %+v", l)
		}
		b := join(t, s, sharing(1)).run()
		b.comesTo(1, 3*testTTL)
		b.leave()
		close(stuck)
		a.comesTo(1, testTTL)
		confirms(t, a.holding()[0])
	})
}

// Another one's value in the key, which the member hears of first.
func TestNoHolderBeginsBeforeTheOneBeforeItHasReturned(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		stuck := make(chan struct{})
		a := join(t, s, sharing(1)).runWith(func(h *Held) { holds(h); <-stuck })
		a.comesTo(1, testTTL)
		h := a.holding()[0]
		remove(t, s, leaseKey("0"))
		_ = lose(t, h, time.Second)
		passes(3 * testTTL)
		if n := a.taken(); n != 1 {
			t.Errorf("%d holders while the first has not returned", n)
		}
		close(stuck)
		a.comesTo(1, time.Second)
	})
}
