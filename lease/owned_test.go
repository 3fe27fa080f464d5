package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

const itemKey = "billing/lease/resource/orders/0"

// testItem returns an item with a nonce of its own, and its values.
func testItem(s cas.Store, ttl time.Duration) (*owned, value) {
	o := newOwned(s, itemKey, ttl)
	return o, func(generation int64) []byte {
		return leaseRecord{Member: "m", Nonce: o.nonce, Generation: generation}.json()
	}
}

func acquired(t *testing.T, s cas.Store, ttl time.Duration) (*owned, value) {
	t.Helper()
	o, v := testItem(s, ttl)
	if _, err := o.acquire(t.Context(), look(t, s, itemKey), v); err != nil {
		t.Fatal(err)
	}
	return o, v
}

func renewed(t *testing.T, o *owned, v value) cas.Item {
	t.Helper()
	item, err := o.renew(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func TestAnItemCountsFromWhenItsRenewalWasSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		w.has(slow)
		o, v := testItem(w, testTTL)
		sent := time.Now()
		if _, err := o.acquire(t.Context(), cas.Item{Key: itemKey}, v); err != nil {
			t.Fatal(err)
		}
		if late := o.deadline.Sub(sent.Add(term(testTTL))); late != 0 {
			t.Errorf("the first deadline is %v too late", late)
		}
		passes(time.Second)
		sent = time.Now()
		renewed(t, o, v)
		if late := o.deadline.Sub(sent.Add(term(testTTL))); late != 0 {
			t.Errorf("the deadline is %v too late", late)
		}
		if left := o.left(); left != term(testTTL)-time.Second {
			t.Errorf("%v are left", left)
		}
	})
}

func TestAnAdoptedItemDoesNotExtendTheDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		o, v := acquired(t, w, testTTL)
		before, deadline := o.item, o.deadline
		passes(time.Second)
		w.has(unanswered)
		if _, err := o.renew(t.Context(), v); !errors.Is(err, errWire) || errors.Is(err, ErrLost) {
			t.Fatalf("renew without an answer: %v", err)
		}
		w.has(nil)
		if err := o.resolve(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := look(t, w, itemKey)
		if now.Version == before.Version || o.item.Version != now.Version || o.adopted != 1 {
			t.Errorf("the item is at %s, the key at %s, before at %s; adopted %d times", o.item.Version, now.Version, before.Version, o.adopted)
		}
		if !o.deadline.Equal(deadline) {
			t.Error("what was adopted has moved the deadline")
		}
		if o.latest() != now.Number {
			t.Errorf("its generation is %d, want %d", o.latest(), now.Number)
		}
		if next := renewed(t, o, v); next.Number <= now.Number {
			t.Errorf("generation %d follows %d", next.Number, now.Number)
		}
	})
}

// Its time is not known.
func TestAnAcquisitionThatIsAdoptedCountsFromItsRenewal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		w.first(func(r request) bool { return r.op == "swap" }, func(ctx context.Context, r request, do func(context.Context) error) error {
			passes(time.Second)
			return unanswered(ctx, r, do)
		})
		o, v := testItem(w, testTTL)
		if _, err := o.acquire(t.Context(), cas.Item{Key: itemKey}, v); err != nil {
			t.Fatal(err)
		}
		if n := w.counted("swap"); n != 2 {
			t.Errorf("%d swaps, want one more than the one that was adopted", n)
		}
		if left := o.left(); left != term(testTTL) {
			t.Errorf("%v are left of what was renewed just now", left)
		}
	})
}

func TestALostAnswerLeavesTimeForAnotherRequest(t *testing.T) {
	for _, ttl := range []time.Duration{leastTTL, time.Second, 3 * time.Second, testTTL, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				o, v := acquired(t, w, ttl)
				w.has(swallow)
				for range 2 {
					if _, err := o.renew(t.Context(), v); err == nil || errors.Is(err, ErrLost) {
						t.Fatalf("renew without an answer: %v; want an error that is not ErrLost", err)
					}
				}
				if left := o.left(); left < ttl/6 {
					t.Errorf("%v of %v are left after two requests", left, ttl)
				}
				w.has(nil)
				renewed(t, o, v)
			})
		})
	}
}

func TestTwoRequestsOfOneItemDoNotOvertakeEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		o, v := acquired(t, w, testTTL)
		conflicts := 0
		w.has(func(ctx context.Context, _ request, do func(context.Context) error) error {
			passes(time.Millisecond)
			err := do(ctx)
			passes(time.Millisecond)
			if errors.Is(err, cas.ErrConflict) {
				conflicts++
			}
			return err
		})
		done := make(chan error)
		for range 8 {
			go func() {
				var err error
				for range 20 {
					_, e := o.renew(t.Context(), v)
					err = errors.Join(err, e)
				}
				done <- err
			}()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if conflicts > 0 || o.adopted > 0 {
			t.Errorf("%d conflicts, adopted %d times", conflicts, o.adopted)
		}
		if now := look(t, w, itemKey); now.Version != o.item.Version {
			t.Errorf("the item is at %s, the key at %s", o.item.Version, now.Version)
		}
	})
}

func TestARequestThatWaitsForAnotherEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o, v := acquired(t, wayTo(memstore.New()), testTTL)
		if err := o.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer o.leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.renew(ctx, v); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("renew: %v", err)
		}
	})
}

func TestWhatWasReleasedOrRemovedIsNotWrittenAgain(t *testing.T) {
	for how, end := range map[string]func(ctx context.Context, o *owned) error{
		"released": func(ctx context.Context, o *owned) error {
			_, err := o.release(ctx, func(g int64) []byte { return leaseRecord{Generation: g}.json() })
			return err
		},
		"removed": func(ctx context.Context, o *owned) error { return o.remove(ctx) },
	} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				o, v := acquired(t, w, testTTL)
				if err := end(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				left := look(t, w, itemKey)
				w.has(func(_ context.Context, r request, _ func(context.Context) error) error {
					t.Errorf("a %s after it was %s", r.op, how)
					return errWire
				})
				if _, err := o.renew(t.Context(), v); !errors.Is(err, ErrLost) || !errors.Is(err, errEnded) {
					t.Errorf("renew: %v", err)
				}
				if err := end(t.Context(), o); !errors.Is(err, ErrLost) {
					t.Errorf("once more: %v", err)
				}
				w.has(nil)
				if now := look(t, w, itemKey); now.Version != left.Version {
					t.Errorf("the key holds %s", now.Value)
				}
			})
		})
	}
}

func TestAReleaseWhoseAnswerWasLostIsNoLeaseAnyMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		o, v := acquired(t, w, testTTL)
		w.has(unanswered)
		released := func(g int64) []byte { return leaseRecord{Generation: g}.json() }
		if _, err := o.release(t.Context(), released); !errors.Is(err, errWire) {
			t.Fatalf("release: %v", err)
		}
		w.has(nil)
		if _, err := o.renew(t.Context(), v); !errors.Is(err, errTaken) || !strings.Contains(err.Error(), "it was released") {
			t.Errorf("renew: %v", err)
		}
	})
}

func TestAnItemOfAnotherIsNeverTaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		first, v := acquired(t, s, testTTL)
		old := first.item
		held := renewed(t, first, v)
		for what, seen := range map[string]cas.Item{"nothing": {Key: itemKey}, "an older item": old} {
			o, v := testItem(s, testTTL)
			now, err := o.acquire(t.Context(), seen, v)
			if !errors.Is(err, cas.ErrConflict) {
				t.Errorf("acquire after %s: %v, want ErrConflict", what, err)
			}
			if now.Version != held.Version || string(now.Value) != string(held.Value) {
				t.Errorf("acquire after %s says that the key holds %+v", what, now)
			}
			if o.left() > 0 {
				t.Errorf("after %s: %v are left of what was not acquired", what, o.left())
			}
		}
		renewed(t, first, v)
	})
}

func TestOfManyThatTakeAnItemAtOnceOneGetsIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		got := make(chan error)
		const many = 20
		for range many {
			go func() {
				o, v := testItem(s, testTTL)
				_, err := o.acquire(t.Context(), cas.Item{Key: itemKey}, v)
				got <- err
			}()
		}
		winners := 0
		for range many {
			if err := <-got; err == nil {
				winners++
			} else if !errors.Is(err, cas.ErrConflict) {
				t.Error(err)
			}
		}
		if winners != 1 {
			t.Errorf("%d have it", winners)
		}
	})
}

func TestAnItemThatIsGoneOrAnothersIsLost(t *testing.T) {
	for _, c := range []struct{ name, value, why string }{
		{"deleted", "", "the key is gone"},
		{"overwritten by anybody", "what is this", "the key holds something else"},
		{"released by somebody", `{"generation":7}`, "it was released"},
		{"taken by another", `{"member":"x","owner":"host-1","nonce":"n","generation":7}`, "member x (host-1) holds it"},
		{"taken by another time of this process", `{"member":"m","nonce":"n","generation":7}`, "member m () holds it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				o, v := acquired(t, s, testTTL)
				if c.value == "" {
					remove(t, s, itemKey)
				} else {
					put(t, s, itemKey, c.value)
				}
				before := look(t, s, itemKey)
				for _, do := range []func() error{
					func() error { _, err := o.renew(t.Context(), v); return err },
					func() error { _, err := o.release(t.Context(), v); return err },
				} {
					if err := do(); !errors.Is(err, ErrLost) || !errors.Is(err, errTaken) || !strings.Contains(err.Error(), c.why) {
						t.Errorf("%v; want ErrLost, as %s", err, c.why)
					}
				}
				if now := look(t, s, itemKey); now.Version != before.Version {
					t.Errorf("the key holds %s", now.Value)
				}
			})
		})
	}
}

// Some replicas answer late, and the swap knows better.
func TestARefusalIsNotExplainedByAnOlderAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		old  int // answers
	}{{"some answers are older", 5}, {"all answers are older", math.MaxInt}} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				o, v := acquired(t, w, testTTL)
				lagging := laggard{way: w, item: o.item, left: c.old}
				o.store = &lagging
				put(t, w.inner, itemKey, `{"member":"x","nonce":"n","generation":7}`)
				before := w.counted("swap")
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := o.renew(ctx, v)
				switch n, lost := w.counted("swap")-before, errors.Is(err, ErrLost); {
				case c.old < math.MaxInt && (n != 1 || !lost):
					t.Errorf("renew: %v, after %d swaps; want ErrLost", err, n)
				case c.old == math.MaxInt && (n > 5 || lost || !errors.Is(err, context.DeadlineExceeded)):
					t.Errorf("renew: %v, after %d swaps; want that it is not known", err, n)
				}
			})
		})
	}
}

// A server has refused the renewal for a write that it has lost since.
func TestARefusalIsForgottenWithTheWriteForWhichItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		o, v := acquired(t, w, testTTL)
		w.first(func(r request) bool { return r.op == "swap" }, func(context.Context, request, func(context.Context) error) error { return cas.ErrConflict })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.renew(ctx, v); err != nil {
			t.Error(err)
		}
	})
}

// laggard is a store whose Get answers with an older item.
type laggard struct {
	*way
	item cas.Item
	left int
}

func (l *laggard) Get(ctx context.Context, key string) (cas.Item, error) {
	if l.left--; l.left >= 0 {
		// Where renewals that are refused are sent again, nothing waits: the test would not end.
		return l.item, errors.Join(ctx.Err(), tooMany(l.counted("swap")))
	}
	return l.way.Get(ctx, key)
}

func tooMany(n int) error {
	if n > 100 {
		return fmt.Errorf("%d swaps", n)
	}
	return nil
}

// A store that has no room for anything larger takes renewals all the same.
func TestARenewalIsAsLargeAsTheOneBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for what, v := range map[string]value{
			"lease":        func(g int64) []byte { return leaseRecord{Member: "m", Nonce: "n", Generation: g}.json() },
			"registration": always([]byte(`{"name":"m","serves":{"orders":3},"nonce":"n"}`)),
		} {
			sizes := map[int]bool{}
			for _, version := range []int64{1, 9, 10, 99999, 1 << 40} {
				var written []byte
				w := wayTo(memstore.New())
				w.has(func(_ context.Context, r request, _ func(context.Context) error) error {
					written = r.value
					return errWire
				})
				o := newOwned(w, itemKey, testTTL)
				_, _ = o.swap(t.Context(), cas.Item{Key: itemKey, Live: true, Version: fmt.Sprint(version), Number: version}, v)
				if r, ok := leaseOf(written); what == "lease" && (!ok || r.Generation != version+1) {
					t.Errorf("%s is read as %+v, %v", written, r, ok)
				}
				size := len(written) + len(fmt.Sprint(version))
				if what == "registration" {
					size += len(fmt.Sprint(version + 1)) // which its value does not have
				}
				sizes[size] = true
			}
			if len(sizes) != 1 {
				t.Errorf("a %s and its version have sizes %v", what, sizes)
			}
		}
	})
}

// expirer is a store that can delete items by itself. It says which it may delete.
type expirer struct {
	*way
	mayDelete map[string]time.Duration
}

func (e *expirer) SwapFor(ctx context.Context, seen cas.Item, value []byte, ttl time.Duration) (cas.Item, error) {
	e.mu.Lock()
	e.mayDelete[seen.Key] = ttl
	e.mu.Unlock()
	return e.Swap(ctx, seen, value, nil)
}

// A lease must stay for as long as its registration, which may be longer than TTL.
func TestAStoreMayDeleteRegistrationsAndNoLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &expirer{wayTo(memstore.New()), map[string]time.Duration{}}
		put(t, s, "billing/lease/resource/nightly/0", `{"member":"ghost","nonce":"n","generation":1}`)
		m, err := Open(t.Context(), s, testOptions(&said{}))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		h, err := m.Acquire(t.Context(), "nightly")
		if err != nil {
			t.Fatal(err)
		}
		confirms(t, h)
		passes(2 * testTTL)
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]time.Duration{memberKey(m.id): testTTL, memberKey("ghost"): fullReads * testTTL}
		if fmt.Sprint(s.mayDelete) != fmt.Sprint(want) {
			t.Errorf("it may delete %v, want %v", s.mayDelete, want)
		}
	})
}
