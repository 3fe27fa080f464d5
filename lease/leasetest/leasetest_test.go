package leasetest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestLeasesOnAStoreThatReportsChanges(t *testing.T) {
	simulate(t, func() cas.Store { return memstore.New() })
}

// silent is a store that is asked again and again.
type silent struct{ cas.Store }

func TestLeasesOnAStoreThatDoesNotReportChanges(t *testing.T) {
	simulate(t, func() cas.Store { return silent{memstore.New()} })
}

var explored = flag.Int("explore", 40, "how many runs of random faults")

func TestRandomFaultsNeverGiveALeaseToTwo(t *testing.T) {
	explore(t, *explored, func() cas.Store { return memstore.New() })
}

func TestRandomFaultsNeverGiveALeaseToTwoOnAStoreThatDoesNotReportChanges(t *testing.T) {
	explore(t, *explored, func() cas.Store { return silent{memstore.New()} })
}

// simulate plays every history on a store without a server, in a bubble of its own.
func simulate(t *testing.T, open func() cas.Store) {
	for _, h := range histories {
		t.Run(h.claim, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { h.play(newWorld(t, "billing", 15*time.Second, rigOf(open()))) })
		})
	}
}

func rigOf(s cas.Store) castest.Rig {
	r := castest.Rig{Open: func(testing.TB, func(string) string) cas.Store { return s }}
	if b, ok := s.(interface{ Backup() (restore func()) }); ok {
		r.Backup = func(testing.TB) func() { return b.Backup() }
	}
	return r
}

const (
	exploredResources = 5
	exploredSteps     = 60
)

// explore plays runs of random faults on a store without a server: members join, leave, are cut off,
// come back, and are ended although they live; requests and answers are lost, and writes land late. No resource may have two
// holders at a time, and in the end each has one. The race detector gets a quarter of the runs.
func explore(t *testing.T, runs int, open func() cas.Store) {
	for seed := range bubble.Rounds(runs) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				x := &exploration{
					world: newWorld(t, "billing", 15*time.Second, rigOf(open())),
					rand:  rand.New(rand.NewPCG(uint64(seed), 0)), //nolint:gosec // a seed is to be repeated
				}
				x.play()
			})
		})
	}
}

type exploration struct {
	*world
	rand    *rand.Rand
	members []*member
	land    []chan struct{} // closed so that late writes land
	joined  int
}

func (x *exploration) play() {
	for range 2 {
		x.joins()
	}
	for range exploredSteps {
		x.step()
		x.sleep(time.Duration(x.rand.Int64N(int64(x.ttl / 2))))
	}
	for _, m := range x.members {
		m.whole()
	}
	x.lands()
	x.until("each resource has one holder, and that can confirm it", func() bool {
		return x.allHeld(exploredResources) && x.confirmed() && x.allHeld(exploredResources)
	})
}

func (x *exploration) step() {
	m := x.members[x.rand.IntN(len(x.members))]
	switch n := x.rand.IntN(22); {
	case n < 3:
		m.cutOff()
	case n < 8:
		m.whole()
	case n < 11:
		m.next(fault{in: x.key(), request: x.rand.IntN(2) == 0})
	case n < 14:
		land := make(chan struct{})
		x.land = append(x.land, land)
		m.next(fault{in: x.key(), until: land, done: make(chan error, 1)})
	case n < 16:
		x.lands()
	case n < 18 && len(x.members) < 5:
		x.joins()
	case n == 18 && len(x.members) > 2:
		m.whole()
		m.leave()
		x.forget(m)
	case n > 19:
		x.mu.Lock()
		x.suspects = true
		x.mu.Unlock()
		id, other := m.Registration(), x.members[x.rand.IntN(len(x.members))].Member
		x.checks.Go(func() { _ = other.End(x.ctx, id, "test") }) // it may be the same one, or cut off
	default:
		x.confirmed()
	}
}

// key is a part of keys that a fault is about.
func (x *exploration) key() string {
	return []string{"/member/", "/resource/"}[x.rand.IntN(2)]
}

func (x *exploration) joins() {
	x.joined++
	x.members = append(x.members, x.join(fmt.Sprint("m", x.joined), serving(exploredResources)).run())
}

func (x *exploration) forget(m *member) {
	for i := range x.members {
		if x.members[i] == m {
			x.members = append(x.members[:i:i], x.members[i+1:]...)
			return
		}
	}
}

// lands lets all late writes land.
func (x *exploration) lands() {
	for _, land := range x.land {
		close(land)
	}
	x.land = nil
}

// cutOff cuts the wire unless it is cut.
func (w *wire) cutOff() {
	if w.mu.Lock(); w.isCut {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	w.cut()
}

// whole mends the wire if it is cut.
func (w *wire) whole() {
	if w.mu.Lock(); !w.isCut {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	w.mend()
}
