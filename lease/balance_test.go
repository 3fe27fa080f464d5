package lease

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// An acquisition whose answer was lost, or a release that failed, leaves a lease that names us: others
// see that a live member has it, so that nobody but us can take it.
func TestALeaseOfOursThatNothingUsesIsTakenAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(1)).run()
		m.comesTo(1, testTTL)
		first := m.holding()[0]
		put(t, s, leaseKey("0"), `{"member":"`+m.id+`","nonce":"of a request whose answer was lost","generation":9}`)
		_ = lose(t, first, time.Second)
		m.comesTo(1, 5*time.Second)
		if h := m.holding()[0]; h == first || confirms(t, h) == 0 {
			t.Error("it is the same")
		}
	})
}

func TestAnOrphanThatIsNotWantedIsReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(1)).runWith(func(*Held) {}) // gives up at once
		until(t, testTTL, func() bool { return a.taken() == 1 })
		b := join(t, s, sharing(1))
		passes(2 * time.Second)
		put(t, s, leaseKey("0"), `{"member":"`+a.id+`","nonce":"of a request whose answer was lost","generation":9}`)
		if took := until(t, testTTL, func() bool { l, _ := leaseOf(look(t, s, leaseKey("0")).Value); return l.Member == "" }); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		b.run().comesTo(1, testTTL)
	})
}

// A thousand resources move in a few seconds, and each move takes what it takes in a smaller group.
func TestAMoveTakesAsManyRequestsInALargeGroup(t *testing.T) {
	perMove := func(resources int32) (requests float64) {
		bubble.Test(t, func(t *testing.T) {
			s := memstore.New()
			start := func() *testMember {
				w := wayTo(s)
				w.has(distant)
				return joinBy(t, w, sharing(resources)).run()
			}
			all := []*testMember{start()}
			all[0].comesTo(int(resources), testTTL)
			before, began := all[0].counted("swap"), time.Now()
			for range 3 {
				all = append(all, start())
			}
			for _, m := range all {
				m.comesTo(int(resources)/4, testTTL)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%d resources are shared after %v", resources, took)
			}
			moves, swaps := -int(resources), -before
			for _, m := range all {
				moves, swaps = moves+m.taken(), swaps+m.counted("swap")
			}
			// Whoever sees the first of them before the others may give it a few more than its share.
			if want := int(resources) * 3 / 4; moves < want || moves > want+want/10 {
				t.Errorf("%d resources have moved, want %d", moves, want)
			}
			requests = float64(swaps) / float64(moves)
		})
		return requests
	}
	if few, many := perMove(128), perMove(512); many > 1.1*few || many > 2.2 {
		t.Errorf("a move takes %.2f writes with 128 resources, and %.2f with 512", few, many)
	}
}

func TestResourcesAreGivenBackOneAfterTheOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		slow := make(chan struct{})
		a := join(t, s, sharing(4)).runWith(func(h *Held) { holds(h); <-slow })
		a.comesTo(4, testTTL)
		b := join(t, s, sharing(4)).run()
		until(t, testTTL, func() bool { return a.draining() > 0 })
		passes(testTTL / 2) // in which it balances some times
		if n := a.draining(); n != 1 {
			t.Errorf("%d are to be given back at a time", n)
		}
		close(slow)
		b.comesTo(2, time.Second)
		passes(testTTL)
		if len(a.holding()) != 2 || len(b.holding()) != 2 || a.taken()+b.taken() != 6 {
			t.Errorf("they hold %d and %d, after %d were taken", len(a.holding()), len(b.holding()), a.taken()+b.taken())
		}
	})
}

func TestWhatIsGivenBackAndNotTakenCostsOneResourceARestAndNoMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		// Somebody who is registered, renews that for ever, and takes nothing.
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for !ready(stop) {
				put(t, s, memberKey("idle"), `{"name":"idle","serves":{"orders":4}}`)
				passes(testTTL / 3)
			}
		}()
		a.comesTo(3, testTTL)
		began := time.Now()
		a.comesTo(4, 4*testTTL)
		if took := time.Since(began); took < testTTL || took > 2*testTTL+2*time.Second {
			t.Errorf("it was idle for %v", took)
		}
		passes(20 * testTTL)
		if n := a.taken(); n != 5 || len(a.holding()) != 4 {
			t.Errorf("it has taken %d, and holds %d", n, len(a.holding()))
		}
		if lines := a.log.with("level=WARN", "nobody takes the resource that was given back"); len(lines) != 1 {
			t.Errorf("it is said %d times:\n%s", len(lines), a.log)
		}
		// When the members change, it shares again.
		b := join(t, s, sharing(4)).run()
		until(t, 2*testTTL, func() bool { return len(b.holding()) >= 1 })
		close(stop)
		<-stopped
		until(t, 4*testTTL, func() bool { return len(a.holding()) == 2 && len(b.holding()) == 2 })
	})
}

// A resource is given back for a member that is gone before it takes it, so that we have it again;
// the one that joins next gets its share all the same.
func TestAMemberThatJoinsAfterOneThatNeverTookItsShareGetsIts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(2)).run()
		a.comesTo(2, testTTL)
		put(t, s, memberKey("ghost"), `{"name":"ghost","serves":{"orders":2},"nonce":"n"}`)
		a.comesTo(1, testTTL)
		remove(t, s, memberKey("ghost"))
		a.comesTo(2, testTTL)
		b := join(t, s, sharing(2)).run()
		b.comesTo(1, testTTL/3)
		a.comesTo(1, time.Second)
	})
}

func TestWhatIsGivenUpIsOthersOrIdleUntilTheMembersChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(2)).runWith(func(h *Held) {
			if h.Number == 0 {
				return
			}
			holds(h)
		})
		passes(5 * testTTL)
		if n := a.taken(); n != 2 || len(a.holding()) != 1 {
			t.Errorf("%d were taken, %d are held", n, len(a.holding()))
		}
		if r := registrationIn(t, s, a.id); !slices.Equal(r.Declined, []string{"orders/0"}) {
			t.Errorf("the others are told %+v", r)
		}
		b := join(t, s, sharing(2)).run()
		until(t, 2*testTTL, func() bool { held := b.holding(); return len(held) == 1 && held[0].Number == 0 })
		a.comesTo(1, testTTL)
	})
}

// A resource that was given up because a handler does not return is others' to have at once, and this
// member does not take it before the handler has returned, whoever joins or leaves.
func TestWhatIsDeclinedIsNotTakenAgainBeforeItMayBe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		until := make(chan struct{})
		a := join(t, s, sharing(1)).runWith(func(h *Held) {
			if !ready(until) {
				h.Decline(until)
				return
			}
			holds(h)
		})
		for range 2 {
			b := join(t, s, sharing(1)).run()
			b.comesTo(1, testTTL)
			b.leave()
			passes(testTTL)
		}
		if n := a.taken(); n != 1 {
			t.Errorf("it was taken %d times", n)
		}
		close(until)
		a.comesTo(1, time.Second)
	})
}

func TestWhatIsNotGivenBackInTimeIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(1)).runWith(func(h *Held) { <-h.Context().Done() }) // whatever Draining says
		a.comesTo(1, testTTL)
		h := a.holding()[0]
		began := time.Now()
		go a.stop()
		if err := lose(t, h, 2*testTTL); !errors.Is(err, ErrDrainOverrun) {
			t.Errorf("lost because of %v", err)
		}
		if took := time.Since(began); took != a.Term() {
			t.Errorf("it was lost after %v, want %v", took, a.Term())
		}
		if lines := a.log.with("level=ERROR", "not given back in time", "resource=orders/0"); len(lines) != 1 {
			t.Errorf("it is said %d times:\n%s", len(lines), a.log)
		}
	})
}

// The first one would take everything, and give most of it back.
func TestMembersThatStartTogetherShareWithoutMoves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		var all []*testMember
		for range 4 {
			m := join(t, s, sharing(16)).run()
			all = append(all, m)
			passes(100 * time.Millisecond)
		}
		for _, m := range all {
			m.comesTo(4, testTTL)
			if m.taken() != 4 {
				t.Errorf("one has taken %d", m.taken())
			}
		}
	})
}
