package lease

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// crash ends the member without a word to the store.
func (m *testMember) crash() {
	m.has(refuse)
	m.leave()
}

// A process that crashes and is started again would be given its share each time, which would then be
// idle for a TTL.
func TestAProcessThatCrashesAgainAndAgainLeavesLittleIdle(t *testing.T) {
	const resources = 8
	for _, c := range []struct {
		name     string
		works    bool // it crashes 3 s after it has got work, not 3 s after its start
		restarts time.Duration
	}{
		{"after its start, back at once", false, time.Second},
		{"after its start", false, 2 * testTTL},
		{"after it has got work, back at once", true, time.Second},
		{"after it has got work", true, 2 * testTTL},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				a := join(t, s, sharing(resources)).run()
				a.comesTo(resources, testTTL)
				idle, began := time.Duration(0), time.Now()
				second := func(b *testMember) {
					if passes(time.Second); len(a.holding())+len(b.holding()) < resources {
						idle += time.Second
					}
				}
				for time.Since(began) < time.Hour/2 {
					b := join(t, s, sharing(resources)).run()
					for c.works && len(b.holding()) == 0 {
						second(b)
					}
					for range 3 {
						second(b)
					}
					b.crash()
					for range c.restarts / time.Second {
						second(b)
					}
				}
				if idle > 3*time.Minute {
					t.Errorf("some resources were idle for %v of half an hour", idle)
				}
			})
		})
	}
}

func TestWhoDiesOldOrLeavesPutsNobodyOnTrial(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		b := join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		b.leave()
		b = join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		passes(mostTrial / 2 * testTTL)
		b.crash()
		a.comesTo(4, 2*testTTL)
		join(t, s, sharing(4)).run().comesTo(2, time.Second)
	})
}

// A suspicion costs time, and no resource.
func TestAMemberOnTrialServesAtOnceWhatNobodyElseDoes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		b := join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		b.crash()
		a.comesTo(4, 2*testTTL)
		c, d := join(t, s, sharing(4)).run(), join(t, s, sharing(6)).run()
		until(t, 4*testTTL, func() bool { return len(a.holding()) == 3 && len(d.holding()) == 3 })
		if len(c.holding()) > 0 {
			t.Error("a member on trial serves what others do")
		}
		a.leave()
		d.leave()
		c.comesTo(4, 3*time.Second)
	})
}

func TestAMemberThatHasPassedItsTrialHasItsShare(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		b := join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		passes(10 * time.Second)
		b.crash()
		a.comesTo(4, 2*testTTL)
		c := join(t, s, sharing(4)).run()
		passes(20 * time.Second)
		if len(c.holding()) > 0 || len(c.log.with("level=WARN", "waits before it takes resources")) != 1 {
			t.Errorf("it holds %d\n%s", len(c.holding()), c.log)
		}
		c.comesTo(2, 15*time.Second)
	})
}

func TestAProcessThatOnlyHasLocksPutsNobodyOnTrialAndIsNotOnOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a := join(t, s, sharing(4)).run()
		a.comesTo(4, testTTL)
		l := join(t, s)
		l.locks("nightly")
		passes(time.Second)
		l.crash()
		passes(2 * testTTL)
		b := join(t, s, sharing(4)).run()
		b.comesTo(2, time.Second)
		b.crash()
		passes(2 * testTTL)
		if l := join(t, s); len(l.log.with("waits before it takes resources")) > 0 {
			t.Errorf("it is on trial:\n%s", l.log)
		}
	})
}
