package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/waits"
)

// unwatched is a way to a store that reports no changes.
type unwatched struct{ cas.Store }

// ends has members end a registration, as each does that has noticed a death.
func ends(t *testing.T, id string, by ...*testMember) {
	t.Helper()
	for _, m := range by {
		if err := m.End(t.Context(), id, "it was killed"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLeasesOfADeadMemberMoveAtOnceToThoseWhoEndItsRegistration(t *testing.T) {
	for name, open := range map[string]func(*way) cas.Store{
		"the store reports changes":   func(w *way) cas.Store { return w },
		"the store reports no change": func(w *way) cas.Store { return unwatched{w} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				member := func() *testMember {
					w := wayTo(s)
					return joinOn(t, w, open(w), sharing(6)).run()
				}
				a, b, c := member(), member(), member()
				for _, m := range []*testMember{a, b, c} {
					m.comesTo(2, 2*testTTL)
				}
				passes(testTTL)
				id := a.Registration()
				a.crash()
				ends(t, id, b, c)
				took := until(t, testTTL, func() bool { return len(b.holding()) == 3 && len(c.holding()) == 3 })
				if took > 100*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if n := len(b.log.with("level=WARN", "thought to be dead", id, `why="it was killed"`)) + len(c.log.with("thought to be dead")); n != 1 {
					t.Errorf("that it was ended is said %d times:\n%s", n, b.log)
				}
				b.Note("hello")
				until(t, testTTL, func() bool {
					notes := ""
					for _, r := range c.Members() {
						if r.Suspected == b.Name && r.ID != id || r.Suspected == "" && r.ID == id {
							t.Errorf("members: %+v", c.Members())
						}
						notes += r.Note
					}
					return notes == "hello" && len(c.Members()) == 3
				})
			})
		})
	}
}

func TestWhoseRegistrationIsEndedRegistersAgainOnceItIsReady(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		var ready atomic.Bool
		unready := func(o *Options) {
			o.Ready = func(context.Context) error {
				if !ready.Load() {
					return errors.New("the database is out of reach")
				}
				return nil
			}
		}
		a, b := join(t, s, sharing(4), unready).run(), join(t, s, sharing(4)).run()
		until(t, 2*testTTL, func() bool { return len(a.holding()) == 2 && len(b.holding()) == 2 })
		id := a.Registration()
		ends(t, id, b)
		b.comesTo(4, testTTL)
		for range 10 {
			passes(testTTL)
			if n := len(b.holding()); n != 4 || a.Registration() == id || len(a.holding()) != 0 {
				t.Fatalf("while it is not ready, it is registered as %q, and the other member holds %d of 4", a.Registration(), n)
			}
		}
		ready.Store(true)
		until(t, testTTL, func() bool { return len(a.holding()) == 2 && len(b.holding()) == 2 })

		// It expired by its own clock, as may those of all others: nobody is asked.
		ready.Store(false)
		id = a.Registration()
		a.has(refuse)
		passes(2 * testTTL)
		a.has(nil)
		until(t, 2*testTTL, func() bool { return a.Registration() != id && len(a.holding()) == 2 })
	})
}

// Each round has one of three orders: the renewal first, the end first, or both at once.
func TestARegistrationThatIsRenewedWhileItIsEndedIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(2)).run(), join(t, s, sharing(2)).run()
		for range 100 {
			id := a.Registration()
			renewed := make(chan struct{})
			go func() {
				defer close(renewed)
				waits.Notify(a.changed)
			}()
			ends(t, id, b)
			<-renewed
			until(t, time.Second, func() bool { now := a.Registration(); return now != "" && now != id })
			if r := registrationIn(t, s, id); !r.Ended {
				t.Fatalf("%s is registered again: %+v", id, r)
			}
			until(t, testTTL, func() bool { return len(a.holding()) == 1 && len(b.holding()) == 1 })
		}
		for _, h := range append(a.holding(), b.holding()...) {
			confirms(t, h)
		}
	})
}

// The member renews its registration between the read and the swap of End.
func TestARenewalInBetweenIsNoReasonNotToEndARegistration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s), join(t, s)
		id, times := a.Registration(), 0
		b.has(func(ctx context.Context, r request, do func(context.Context) error) error {
			if r.swaps("/member/"+id) && times < 3 {
				times++
				waits.Notify(a.changed)
				changes(t, s, id, 1)
			}
			return do(ctx)
		})
		ends(t, id, b)
		if r := registrationIn(t, s, id); times != 3 || !r.Ended {
			t.Errorf("after %d renewals: %+v", times, r)
		}
	})
}

func TestOnlyRegistrationsOfOthersAreEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(1)).run()
		a.comesTo(1, testTTL)
		for _, id := range []string{a.Registration(), a.id + "-2", "", "a/b", "../resource/orders/0"} {
			if err := a.End(t.Context(), id, "test"); err == nil {
				t.Errorf("%q was ended", id)
			}
		}
		ends(t, "NOBODY", a)
		if item := look(t, s, memberKey("NOBODY")); item.Live {
			t.Errorf("a registration that never was has become %s", item.Value)
		}
		confirms(t, a.holding()[0])
	})
}

// It registers again, which the dead do not do. Its leases move twice, and nobody waits.
func TestWhoIsEndedAliveSoonAfterItJoinedPutsNobodyOnTrial(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		short := func(o *Options) { o.TTL = 2 * time.Second } // a suspicion is older than its renewals
		a := join(t, s, sharing(6), short).run()
		a.comesTo(6, testTTL)
		b := join(t, s, sharing(6), short).run()
		b.comesTo(3, time.Second)
		id := b.Registration()
		b.has(refuse)
		passes(1500 * time.Millisecond)
		ends(t, id, a)
		b.has(nil)
		b.comesTo(3, 2*time.Second)
		passes(5 * time.Second)
		c := join(t, s, sharing(6), short).run()
		c.comesTo(2, time.Second)
		if lines := a.log.with("died soon after"); len(lines) > 0 {
			t.Error(lines)
		}
	})
}

func TestWhoIsEndedDeadSoonAfterItJoinedPutsNewMembersOnTrial(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		b := join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		id := b.Registration()
		b.crash()
		ends(t, id, a)
		a.comesTo(4, time.Second)
		join(t, s, sharing(4)).run().comesTo(2, time.Second) // it may be the same process, again
		passes(2*testTTL + time.Second)
		c := join(t, s, sharing(4)).run()
		if passes(time.Second); len(c.holding()) > 0 {
			t.Errorf("it is not on trial:\n%s", a.log)
		}
	})
}
