package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func registrationIn(t *testing.T, s cas.Store, id string) memberRecord {
	t.Helper()
	var r memberRecord
	if item := look(t, s, memberKey(id)); item.Live {
		if err := json.Unmarshal(item.Value, &r); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// changes waits until the registration was written n times more.
func changes(t *testing.T, s cas.Store, id string, n int) {
	t.Helper()
	for range n {
		before := look(t, s, memberKey(id)).Version
		until(t, testTTL, func() bool { return look(t, s, memberKey(id)).Version != before })
	}
}

func TestARegistrationCountsFromWhenItsRenewalWasSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		m := joinBy(t, w)
		var sent time.Time
		w.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("/member/") {
				sent = time.Now()
				return slow(ctx, r, do)
			}
			return do(ctx)
		})
		changes(t, w.inner, m.id, 1)
		passes(time.Second)
		w.has(refuse)
		h := m.current()
		until(t, testTTL, func() bool { return h.held.Err() != nil })
		if took := time.Since(sent); took < term(testTTL)-10*time.Millisecond || took > term(testTTL)+10*time.Millisecond {
			t.Errorf("it was over %v after its renewal was sent, want %v", took, term(testTTL))
		}
		if err := h.err(); !errors.Is(err, ErrLost) || !errors.Is(err, ErrExpired) {
			t.Errorf("it is over because of %v", err)
		}
	})
}

// One lost answer must not cost what all leases rest on.
func TestALostRenewalOfTheRegistrationCostsNoLease(t *testing.T) {
	for what, f := range map[string]fate{"its answer": unanswered, "its request": refuse, "both, and nobody says so": swallow} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := join(t, memstore.New(), sharing(3)).run()
				m.comesTo(3, testTTL)
				m.first(func(r request) bool { return r.swaps("/member/") }, f)
				passes(3 * testTTL)
				for _, h := range m.holding() {
					confirms(t, h)
				}
				if n := m.taken(); n != 3 || m.current().id != m.id {
					t.Errorf("%d leases were taken, it is registered as %s, was %s", n, m.current().id, m.id)
				}
			})
		})
	}
}

func TestAFullStoreStillRenewsARegistrationThatHasMoreToTell(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(3)).run()
		m.comesTo(3, testTTL)
		changes(t, s, m.id, 1) // the first leaves room for a version
		capacity := len(look(t, s, memberKey(m.id)).Value)
		m.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("/member/") && len(r.value) > capacity {
				return cas.ErrFull
			}
			return do(ctx)
		})
		m.holding()[0].Decline(make(chan struct{})) // which the registration is to tell
		passes(3 * testTTL)
		changes(t, s, m.id, 2)
		for _, h := range m.holding() {
			confirms(t, h)
		}
		if m.current().id != m.id || len(registrationIn(t, s, m.id).Declined) > 0 {
			t.Errorf("it is registered as %s, was %s: %+v", m.current().id, m.id, registrationIn(t, s, m.id))
		}
		if lines := m.log.with("level=ERROR", "the store of the leases is full"); len(lines) < 1 || len(lines) > 3 {
			t.Errorf("that the store is full is said %d times:\n%s", len(lines), m.log)
		}
		m.has(nil)
		until(t, testTTL, func() bool { return len(registrationIn(t, s, m.id).Declined) == 1 })
	})
}

// A view that is late may not have the registration of the holder.
func TestALeaseIsNotTakenBecauseAViewLacksItsRegistration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(4)).run(), join(t, s, sharing(4)).run()
		a.comesTo(2, testTTL)
		b.comesTo(2, testTTL)
		took := a.taken() + b.taken()
		for range 3 {
			b.view.mu.Lock()
			delete(b.view.now.members, a.id)
			b.view.mu.Unlock()
			b.balance()
			until(t, testTTL/3, func() bool { return b.view.snapshot().isRegistered(a.id) })
		}
		for _, h := range a.holding() {
			confirms(t, h)
		}
		if now := a.taken() + b.taken(); now != took || len(a.holding()) != 2 {
			t.Errorf("a holds %d, after %d more were taken", len(a.holding()), now-took)
		}
	})
}

// A replica may answer that has not heard of the registration.
func TestARegistrationThatAnAnswerLacksIsNotGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(2)).run(), join(t, s)
		a.comesTo(2, testTTL)
		before := look(t, s, memberKey(a.id))
		b.store = &laggard{way: b.way, item: cas.Item{Key: memberKey(a.id)}, left: 1}
		if gone, err := b.isGone(t.Context(), a.id); gone || err != nil {
			t.Errorf("isGone = %v, %v; it is registered", gone, err)
		}
		if now := look(t, s, memberKey(a.id)); now.Version != before.Version {
			t.Errorf("the key holds %s", now.Value)
		}
		confirms(t, a.holding()[0])
		if gone, err := b.isGone(t.Context(), "nobody"); !gone || err != nil {
			t.Errorf("isGone = %v, %v; there is no such registration", gone, err)
		}
		if !registrationIn(t, s, "nobody").Ended {
			t.Error("nothing keeps it from being made late")
		}
	})
}

func TestARegistrationIsGoneOnceItWasEndedOrDeleted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		for id, c := range map[string]struct {
			value string
			gone  bool
		}{
			"lives": {`{"name":"x"}`, false}, "strange": {"what is this", false}, "ended": {`{"name":"x","ended":true}`, true}, "deleted": {"", true},
		} {
			put(t, s, memberKey(id), c.value)
			if c.value == "" {
				remove(t, s, memberKey(id))
			}
			before := look(t, s, memberKey(id)).Version
			m.view.replace(newPicture(), time.Now()) // so that it asks
			if gone, err := m.isGone(t.Context(), id); gone != c.gone || err != nil {
				t.Errorf("%s: isGone = %v, %v", id, gone, err)
			}
			if now := look(t, s, memberKey(id)); now.Version != before {
				t.Errorf("%s: the key holds %s", id, now.Value)
			}
		}
		m.has(refuse)
		if gone, err := m.isGone(t.Context(), "unknown"); gone || err == nil {
			t.Errorf("without an answer: isGone = %v, %v", gone, err)
		}
	})
}

func TestARegistrationWhoseIDWasEndedIsNotMadeLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(1)).run(), join(t, s)
		a.comesTo(1, testTTL)
		second, third := a.id+"-2", a.id+"-3"
		land, landed, sent := make(chan struct{}), make(chan error, 1), make(chan struct{})
		a.first(func(r request) bool { return r.swaps(second) }, func(ctx context.Context, _ request, do func(context.Context) error) error {
			close(sent)
			go func() {
				<-land
				landed <- do(context.WithoutCancel(ctx))
			}()
			return errWire
		})
		remove(t, s, memberKey(a.id))
		<-sent
		if gone, err := b.isGone(t.Context(), second); !gone || err != nil {
			t.Fatalf("isGone = %v, %v", gone, err)
		}
		close(land)
		if err := <-landed; !errors.Is(err, cas.ErrConflict) {
			t.Errorf("what lands late: %v, want a conflict", err)
		}
		until(t, testTTL, func() bool { return a.current().id == third })
		a.comesTo(1, testTTL)
		confirms(t, a.holding()[0])
		if !registrationIn(t, s, second).Ended {
			t.Errorf("%s is %+v", second, registrationIn(t, s, second))
		}
	})
}

// The leases look alive: nothing in their keys has changed.
func TestLeasesGoWithTheRegistrationThatTheyName(t *testing.T) {
	for how, end := range map[string]func(t *testing.T, s cas.Store, key string){
		"deleted":     remove,
		"ended":       func(t *testing.T, s cas.Store, key string) { put(t, s, key, `{"name":"x","ended":true}`) },
		"overwritten": func(t *testing.T, s cas.Store, key string) { put(t, s, key, `{"name":"x"}`) },
	} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				a := join(t, s, sharing(3)).run()
				a.comesTo(3, testTTL)
				a.has(distant)
				old := a.holding()
				end(t, s, memberKey(a.id))
				for _, h := range old {
					if err := lose(t, h, testTTL); !errors.Is(err, errUnregistered) {
						t.Errorf("lost because of %v", err)
					}
					if _, err := h.Confirm(t.Context()); !errors.Is(err, ErrLost) {
						t.Errorf("confirm: %v", err)
					}
				}
				a.comesTo(3, 2*testTTL)
				if id := a.current().id; id != a.id+"-2" {
					t.Errorf("it is registered as %s, was %s", id, a.id)
				}
				for _, h := range a.holding() {
					if r, _ := leaseOf(look(t, s, a.keys.resource(h.Resource)).Value); r.Member != a.current().id {
						t.Errorf("%s names %s", h.Resource, r.Member)
					}
				}
				if lines := a.log.with("level=WARN", "not registered any more"); len(lines) != 1 {
					t.Errorf("it is said %d times:\n%s", len(lines), a.log)
				}
				b := join(t, s, sharing(3)).run()
				b.comesTo(1, testTTL)
			})
		})
	}
}

// A renewal asks the store, once the view shows that somebody has ended the registration.
func TestAMemberHearsSoonThatItsRegistrationWasEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		changes(t, s, m.id, 1)
		put(t, s, memberKey(m.id), `{"ended":true}`)
		if took := until(t, testTTL, func() bool { return m.current().id != m.id }); took > testTTL/10 {
			t.Errorf("it took %v", took)
		}
	})
}

// It has not heard of renewals for longer than a TTL, and a swap knows better.
func TestAMemberIsNotEndedBecauseAViewIsLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(2)).run(), join(t, s, sharing(2)).run()
		a.comesTo(1, testTTL)
		b.comesTo(1, testTTL)
		b.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.op == "watch" {
				return swallow(ctx, r, do)
			}
			return do(ctx)
		})
		asked := b.counted("delete") + b.counted("swap")
		passes(3 * testTTL)
		if a.current().id != a.id || a.taken() != 1 || b.taken() != 1 {
			t.Errorf("a is registered as %s, was %s; they have taken %d and %d", a.current().id, a.id, a.taken(), b.taken())
		}
		// It renews its own some ten times, and asks for a's once a TTL.
		if n := b.counted("delete") + b.counted("swap") - asked; n > 16 {
			t.Errorf("%d writes", n)
		}
		for _, h := range a.holding() {
			confirms(t, h)
		}
	})
}

func TestTheRegistrationOfTheDeadIsEndedAndDeletedOnceAllHaveSeenIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(2)).run(), join(t, s, sharing(2)).run()
		a.comesTo(1, testTTL)
		b.comesTo(1, testTTL)
		changes(t, s, a.id, 1)
		a.has(refuse)
		began := time.Now()
		until(t, 2*testTTL, func() bool { return registrationIn(t, s, a.id).Ended })
		if took := time.Since(began); took < testTTL-time.Second || took > testTTL+2*time.Second {
			t.Errorf("it was ended after %v", took)
		}
		began = time.Now()
		b.comesTo(2, time.Second)
		if lines := b.log.with("level=INFO", "a member has not renewed its registration", "registration="+a.id); len(lines) != 1 {
			t.Errorf("it is said %d times:\n%s", len(lines), b.log)
		}
		until(t, 2*fullReads*testTTL, func() bool { return !look(t, s, memberKey(a.id)).Live })
		if took := time.Since(began); took < fullReads*testTTL-time.Second || took > fullReads*testTTL+2*time.Second {
			t.Errorf("it was deleted after %v", took)
		}
	})
}

// Each counts by its own TTL how long others may be silent, and by theirs if that is longer.
func TestATTLThatNoMemberCanHaveIsNotWaitedFor(t *testing.T) {
	m := &Member{Options: Options{TTL: testTTL}}
	for ms, want := range map[int64]time.Duration{
		0: testTTL, -1: testTTL, math.MinInt64: testTTL, 2000: testTTL, 20_000: 20 * time.Second,
		mostTTL.Milliseconds(): mostTTL, mostTTL.Milliseconds() + 1: testTTL, math.MaxInt64: testTTL,
	} {
		if got := m.termOf(memberRecord{TTL: ms}); got != want {
			t.Errorf("a TTL of %d ms counts as %v, want %v", ms, got, want)
		}
	}
}

func TestTheOwnerIsToldWhenItIsAMemberAndWhenItIsNot(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var now error
		var at time.Time
		observed := func() error { mu.Lock(); defer mu.Unlock(); return now }
		m := join(t, memstore.New(), func(o *Options) {
			o.Joined = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				if now, at = err, time.Now(); err == nil {
					at = time.Time{}
				}
			}
		})
		passes(3 * testTTL)
		if err := observed(); err != nil {
			t.Errorf("a member that renews is told %v", err)
		}
		changes(t, m.inner, m.id, 1)
		m.has(refuse)
		cut := time.Now()
		until(t, testTTL, func() bool { return observed() != nil })
		if silent := at.Sub(cut); silent < testTTL/2 || !strings.HasPrefix(observed().Error(), "lease: ") {
			t.Errorf("after %v: %v", silent, observed())
		}
		m.has(nil)
		until(t, testTTL, func() bool { return observed() == nil })
	})
}

// The others give resources to a member once it is registered.
func TestAMemberThatCannotStartIsNotRegistered(t *testing.T) {
	for _, op := range []string{"facts", "get", "watch"} {
		t.Run(op, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				w.has(func(ctx context.Context, r request, do func(context.Context) error) error {
					if r.op == op {
						return errWire
					}
					return do(ctx)
				})
				_, err := Open(t.Context(), w, testOptions(&said{}))
				if !errors.Is(err, errWire) || !strings.Contains(err.Error(), `lease: open group "billing": `) {
					t.Errorf("open: %v", err)
				}
				for item, err := range w.inner.List(t.Context(), "") {
					t.Errorf("%s was written: %s, %v", item.Key, item.Value, err)
				}
			})
		})
	}
}

// Others would keep resources free for it.
func TestAMemberThatDoesNotKnowWhetherItRegisteredLeavesNoRegistration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		lost := false
		w.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			switch {
			case r.swaps("/member/"):
				lost = true
				return unanswered(ctx, r, do)
			case r.op == "get" && lost:
				lost = false
				return errWire
			}
			return do(ctx)
		})
		if _, err := Open(t.Context(), w, testOptions(&said{})); !errors.Is(err, errWire) {
			t.Errorf("open: %v", err)
		}
		for item, err := range w.inner.List(t.Context(), "") {
			t.Errorf("%s was left: %s, %v", item.Key, item.Value, err)
		}
	})
}

func TestAMemberThatLeavesKeepsItsLeasesUntilTheyAreGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		slow := make(chan struct{})
		a := join(t, s, sharing(2)).runWith(func(h *Held) { holds(h); <-slow })
		a.comesTo(2, testTTL)
		b := join(t, s, sharing(2)).run()
		old := a.holding()
		left := make(chan struct{})
		go func() {
			a.leave()
			close(left)
		}()
		until(t, time.Second, func() bool {
			item := look(t, s, memberKey(a.id))
			return item.Live && !bytes.Contains(item.Value, []byte("serves"))
		})
		passes(testTTL / 2)
		for _, h := range old {
			if !ready(h.Draining()) {
				t.Errorf("%s is not to be given back", h.Resource)
			}
			confirms(t, h)
		}
		if n := len(b.holding()); n != 0 || ready(left) {
			t.Errorf("b holds %d, a has left: %v", n, ready(left))
		}
		close(slow)
		b.comesTo(2, time.Second)
		<-left
		if look(t, s, memberKey(a.id)).Live {
			t.Error("a has left, and is registered")
		}
	})
}

// One question for all resources is under way, and the store does not answer.
func TestAQuestionForARegistrationWaitsForAnotherNoLongerThanItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		if !m.asking.TryAcquire(1) {
			t.Fatal("somebody asks already")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if gone, err := m.isGone(ctx, "dead"); gone || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", gone, err)
		}
		m.asking.Release(1)
		if gone, err := m.isGone(t.Context(), "dead"); !gone || err != nil {
			t.Errorf("%v, %v", gone, err)
		}
	})
}
