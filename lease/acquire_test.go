package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/bubble"
)

func TestAcquireOfANameThatIsSharedIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New(), sharing(2))
		for _, name := range []string{"orders", ""} {
			if h, err := m.Acquire(t.Context(), name); h != nil || err == nil || !strings.Contains(err.Error(), "want a name that Options.Resources does not have") {
				t.Errorf("acquire %q: %v", name, err)
			}
		}
		if h := m.locks("nightly"); h.Resource != (Resource{"nightly", 0}) {
			t.Errorf("it is %s", h)
		}
	})
}

func TestAcquireEndsWithItsContextAndWithTheMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		h := join(t, s).locks("nightly")
		m := join(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 3*testTTL)
		defer cancel()
		if _, err := m.Acquire(ctx, "nightly"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `lease: acquire "nightly": `) {
			t.Errorf("acquire: %v", err)
		}
		confirms(t, h)
		done := make(chan error)
		go func() {
			_, err := m.Acquire(t.Context(), "nightly")
			done <- err
		}()
		passes(time.Second)
		m.Close()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("acquire: %v", err)
		}
	})
}

// Run is told to end, and gives everything back, locks too.
func TestALockIsToBeGivenBackWhenRunEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New(), sharing(1)).run()
		m.comesTo(1, testTTL)
		before := m.locks("before")
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("meanwhile") {
				m.stop()
			}
			return do(ctx)
		})
		meanwhile := m.locks("meanwhile")
		for _, h := range []*Held{before, meanwhile} {
			if !ready(h.Draining()) {
				t.Errorf("%s is kept", h.Resource)
			}
			confirms(t, h)
		}
		if _, err := m.Acquire(t.Context(), "after"); !errors.Is(err, ErrClosed) {
			t.Errorf("acquire: %v", err)
		}
	})
}

// Two goroutines of a process exclude each other like two processes.
// The other has taken and released it before the view shows either.
func TestAnAcquisitionThatMeetsWithALateViewIsMadeAgainAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		put(t, s, lockKey, `{"generation":9}`)
		for name, first := range map[string]fate{
			"nightly": func(ctx context.Context, _ request, do func(context.Context) error) error {
				m.view.mu.Lock()
				m.view.now.leases[Resource{"nightly", 0}] = holder{}
				m.view.mu.Unlock()
				return do(ctx)
			},
			"hourly": func(ctx context.Context, r request, do func(context.Context) error) error {
				put(t, s, r.key, `{"generation":9}`)
				passes(10 * time.Millisecond) // until the view has it
				return do(ctx)
			},
		} {
			m.first(func(r request) bool { return r.swaps(name) }, first)
			began := time.Now()
			m.locks(name)
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("%s: it took %v", name, took)
			}
		}
	})
}

func TestAProcessHasOneLeaseOfALockAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		first := m.locks("nightly")
		got := make(chan struct{})
		var second *Held
		go func() {
			second = m.locks("nightly")
			close(got)
		}()
		passes(3 * testTTL)
		if err := first.Err(); err != nil || ready(got) {
			t.Fatalf("the first is %v, there is a second one: %v", err, ready(got))
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		<-got
		confirms(t, second)
		if took := time.Since(released); took > 10*time.Millisecond {
			t.Errorf("the second took %v", took)
		}
	})
}

func TestCloseLosesLocksBeforeItDeregisters(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m, other := join(t, s), join(t, s)
		h := m.locks("nightly")
		var before error
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.op == "delete" {
				before = context.Cause(h.Context())
			}
			return do(ctx)
		})
		m.Close()
		if !errors.Is(before, ErrLost) || !errors.Is(before, ErrClosed) {
			t.Errorf("when it deregistered, the lease was %v", before)
		}
		if look(t, s, memberKey(m.id)).Live {
			t.Error("it is registered")
		}
		if _, err := h.Confirm(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("confirm: %v", err)
		}
		began := time.Now()
		confirms(t, other.locks("nightly"))
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("the other got it after %v", took)
		}
		_ = h.Release(t.Context()) // and changes nothing
		if err := m.Run(t.Context(), holds); !errors.Is(err, ErrClosed) {
			t.Errorf("run: %v", err)
		}
	})
}

func TestRunIsForOneCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New(), sharing(1)).run()
		m.comesTo(1, testTTL)
		if err := m.Run(t.Context(), holds); err == nil || !strings.Contains(err.Error(), "lease: Run was called before") {
			t.Errorf("run: %v", err)
		}
	})
}
