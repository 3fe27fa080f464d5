// Package leasetest is the suite of package lease on a [cas.Store].
package leasetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// atOnce is how many histories are played at a time. They mostly wait.
const atOnce = 18

// ttl is of the histories on real stores, which a busy machine must not make members miss.
const ttl = 4 * time.Second

// lockTTL is of the histories of [RunLocks], which repeat what a busy machine has cost a lease.
const lockTTL = 2 * time.Second

// Run plays every history, several at a time. They share a rig, in a group each. A history in which
// the store loses items has a rig of its own. Work under a lock goes to memsink: see [RunLocks].
func Run(t *testing.T, create func(t testing.TB) castest.Rig) { run(t, create, ttl, histories) }

func run(t *testing.T, create func(t testing.TB) castest.Rig, ttl time.Duration, hs []history) {
	shared := create(t)
	s := shared.Open(t, direct)
	pulse := pulsetest.Start(t, func(ctx context.Context) error { _, err := s.Get(ctx, "pulse"); return err })
	var all sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for n, h := range hs {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(h.claim, func(t *testing.T) {
				switch {
				case !h.loses:
					h.insists(t, fmt.Sprint("billing", n), ttl, shared, pulse)
				case shared.Strands: // it is skipped
					h.play(newWorld(t, "billing", ttl, shared))
				default:
					h.play(newWorld(t, "billing", ttl, create(t)))
				}
			})
		})
	}
	all.Wait()
}

// insists plays a history once more if it has failed, and the store or this process stood still for long enough
// to cost a lease.
func (h history) insists(t *testing.T, group string, ttl time.Duration, rig castest.Rig, pulse *pulsetest.Pulse) {
	failed, said := verdict.Of(t, func(t testing.TB) {
		once := &trial{TB: t}
		defer once.end() // whose members would be in the way of the next, and whose checks may fail it
		h.play(newWorld(once, group, ttl, rig))
	})
	t.Log(said)
	switch stood := pulse.Stalled(); {
	case failed && stood < ttl/4:
		t.Fatalf("and nothing stood still for longer than %v", stood)
	case failed:
		t.Logf("played again, as the store or this process stood still for %v", stood)
		h.play(newWorld(t, group+"-again", ttl, rig))
	}
}

// trial is a test that cleans up when it is told to.
type trial struct {
	testing.TB
	mu  sync.Mutex
	all []func()
}

func (t *trial) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, f)
}

func (t *trial) end() {
	for _, f := range slices.Backward(t.all) {
		f()
	}
}

// RunLocks plays the histories of work under a lock, with leases on rigs as in [Run] and effects in a
// sink, several at a time. open opens a desk that is empty, for a history each, and is called several
// times at once. [Run] plays them with memsink.
func RunLocks[TX any](t *testing.T, create func(t testing.TB) castest.Rig, open func(t testing.TB) Desk[TX]) {
	run(t, create, lockTTL, locked(open))
}

// RunKilled plays the history that needs Rig.Kill, which [Run] does not have.
func RunKilled(t *testing.T, create func(t testing.TB) castest.Rig) {
	t.Run("when the server or the leader was killed, all is leased again, and nothing ever has two holders", func(t *testing.T) {
		killed(newWorld(t, "billing", ttl, create(t)))
	})
}

// history is one property of leases and the play that shows it.
type history struct {
	claim string
	play  func(w *world)
	loses bool // the store loses what it has
}

var histories = slices.Concat([]history{
	{claim: "one member has a lease at a time, and its generation grows", play: oneAtATime},
	{claim: "a lease that was released is taken soon", play: released},
	{claim: "members that take a lock again and again alternate", play: alternate},
	{claim: "leases of a member that is cut off are taken once it has given them up itself", play: cutOff},
	{claim: "a member that is frozen between a decision and its write changes nothing", play: frozen},
	{claim: "a confirmation whose answer or request was lost costs no lease", play: lostConfirmations},
	{claim: "a confirmation that lands late is adopted", play: lateConfirmation},
	{claim: "an acquisition whose answer was lost is adopted", play: lostAcquisition},
	{claim: "a registration whose answer was lost is adopted", play: lostRegistration},
	{claim: "a release whose answer was lost frees the lease", play: lostRelease},
	{claim: "a release that lands after a takeover changes nothing", play: lateRelease},
	{claim: "an outage that is shorter than the term costs no lease", play: shortOutage},
	{claim: "after a long outage everything is leased again", play: longOutage},
	{claim: "members share equally, with one that joins, and after one has left", play: shares},
	{claim: "leases of a dead member whose registration is ended are taken at once", play: endedDead},
	{claim: "a living member whose registration is ended registers anew", play: endedAlive},
	{claim: "what a member declines is another's", play: declines},
	{claim: "a holder without progress loses its lease", play: stalls},
	{claim: "a lease that is not given back in time is lost", play: overruns},
	{claim: "a member that comes back under its name waits like any other", play: comesBack},
	{claim: "a member with a longer TTL is not robbed by one with a shorter", play: longerTTL},
	{claim: "a lease whose key somebody deletes is lost, and taken anew", play: deletedLease},
	{claim: "a registration that somebody deletes is made anew", play: deletedRegistration},
	{claim: "what no member has written idles no resource for long", play: foreignValues},
	{claim: "readers that lag behind take nothing that is held", play: lagging},
	{claim: "a store that was restored from a backup leases on", play: restored, loses: true},
	{claim: "a store that was emptied leases on", play: emptied, loses: true},
}, locked(inMemory))
