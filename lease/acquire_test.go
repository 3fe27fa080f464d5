package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
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

// By hand, each would be one compare-and-set, too.
func TestAnAcquireThatNobodyContestsIsOneRequestAndSoIsItsRelease(t *testing.T) {
	for name, on := range map[string]func(*way) cas.Store{
		"with a watch": func(w *way) cas.Store { return w },
		"with lists":   func(w *way) cas.Store { return struct{ cas.Store }{w} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				first, second := wayTo(s), wayTo(s)
				a, b := joinOn(t, first, on(first)), joinOn(t, second, on(second))
				requests := func() (n int) {
					for _, op := range []string{"facts", "get", "swap", "delete", "list"} {
						n += first.counted(op) + second.counted(op)
					}
					return n
				}
				for n, m := range []*testMember{a, a, a, b, b, a} {
					want := 1
					if n == 0 {
						want = 2 // the facts, because the key does not exist: the store may have forgotten it
					}
					passes(testTTL + 50*time.Millisecond) // the other knows of it, and no timer of theirs fires
					before := requests()
					h := m.locks("nightly")
					acquired := requests() - before
					if err := h.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					if released := requests() - before - acquired; acquired != want || released != 1 {
						t.Errorf("%d: %d requests to acquire, want %d; %d to release, want 1", n, acquired, want, released)
					}
				}
			})
		})
	}
}

// Two goroutines of a process exclude each other like two processes.
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

func TestCallsInOneProcessGetALockInTheirOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		got := make(chan int, 300)
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				for range 100 {
					h := m.locks("nightly")
					got <- n
					passes(time.Millisecond)
					_ = h.Release(t.Context())
				}
			})
		}
		all.Wait()
		close(got)
		var winners []int
		for n := range got {
			winners = append(winners, n)
		}
		for i := 3; i < 297; i++ {
			if winners[i] != winners[i-3] {
				t.Fatalf("turn %d is that of %d, and turn %d that of %d", i, winners[i], i-3, winners[i-3])
			}
		}
	})
}

func TestALockThatNobodyElseWantsIsTakenAgainAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		_ = join(t, s)
		m := joinOn(t, wayTo(s), listed{s, true, true})
		began := time.Now()
		for range 1000 {
			h := m.locks("nightly")
			passes(time.Millisecond)
			if err := h.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("a thousand turns took %v", took)
		}
	})
}

// The one that waits is killed: its registration says that it waits, until it is over.
func TestALockIsLeftToOneThatNeverComesForAShortTimeOnly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := joinOn(t, wayTo(s), listed{s, true, true})
		h := m.locks("nightly")
		dead := join(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), testTTL/5)
		defer cancel()
		go func() { _, _ = dead.Acquire(ctx, "nightly") }()
		passes(testTTL / 6)
		dead.has(refuse)
		passes(testTTL / 5)
		began, winners := time.Now(), 0
		for ; time.Since(began) < 2*testTTL; winners++ {
			_ = h.Release(t.Context())
			passes(time.Millisecond)
			h = m.locks("nightly")
		}
		if winners < int(testTTL.Milliseconds()) { // half of what there is time for
			t.Errorf("it has had %d turns", winners)
		}
	})
}

func TestTryAcquireSaysThatTheStoreDoesNotAnswer(t *testing.T) {
	for name, silence := range map[string]fate{"silent": swallow, "away": refuse} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				m := join(t, s)
				put(t, s, lockKey, `{"owner":"dead","member":"dead","nonce":"n","generation":3}`)
				for _, free := range []string{"nightly", "hourly"} { // of a member that may be gone, and of nobody
					m.has(silence)
					for range 3 { // also in the pause after a failure
						if h, err := m.TryAcquire(free); h != nil || !errors.Is(err, ErrUnanswered) || errors.Is(err, ErrHeld) {
							t.Errorf("acquire %q: %v", free, err)
						}
					}
					m.has(nil)
					passes(testTTL)
				}
				m.has(silence)
				passes(2 * testTTL) // and the registration is over
				if _, err := m.TryAcquire("nightly"); !errors.Is(err, ErrUnanswered) {
					t.Errorf("without a registration: %v", err)
				}
				m.has(nil)
				passes(2 * testTTL)
				m.has(unsuitable)
				passes(2 * testTTL)
				if _, err := m.TryAcquire("nightly"); !errors.Is(err, ErrUnanswered) || !errors.Is(err, cas.ErrUnsuitable) {
					t.Errorf("while the store is not suitable: %v", err)
				}
				m.has(nil)
				passes(2 * testTTL)
				if h, err := m.TryAcquire("nightly"); err != nil {
					t.Errorf("once it answers: %v", err)
				} else if _, err = m.TryAcquire("nightly"); !errors.Is(err, ErrHeld) || errors.Is(err, ErrUnanswered) {
					t.Errorf("while %s is held: %v", h, err)
				}
			})
		})
	}
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
