// Package cassinktest is the suite of package cassink on a [cas.Store].
package cassinktest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas/castest"
)

// atOnce is how many histories Run plays at a time. They mostly wait.
const atOnce = 4

// Run plays every history, several at a time. They share a rig, under a prefix each.
func Run(t *testing.T, create func(t testing.TB) castest.Rig) {
	rig := create(t)
	var all sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for n, h := range histories {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(h.claim, func(t *testing.T) {
				if h.served && !rig.Served {
					t.Skip("needs a server (Rig.Served)")
				}
				h.play(newWorld(t, fmt.Sprint("app", n), rig, h.partitions))
			})
		})
	}
	all.Wait()
}

// RunKilled plays the history that needs Rig.Kill, which [Run] does not have.
func RunKilled(t *testing.T, create func(t testing.TB) castest.Rig) {
	t.Run("each message takes effect once while the server or the leader is killed, and members freeze and are killed", func(t *testing.T) {
		killed(newWorld(t, "app", create(t), 3))
	})
}

// history is one property of consumers on the store and the play that shows it.
type history struct {
	claim      string
	partitions int32
	play       func(w *world)
	served     bool
}

var histories = []history{
	{claim: "an owner that is frozen before any of its writes, and thawed after a takeover, changes nothing twice", partitions: 2, play: frozen},
	{claim: "a dead letter that an operator has replayed takes effect once, after the messages behind it", partitions: 1, play: replayed},
	{claim: "an operator pauses, resumes and rewinds a partition under its live owner", partitions: 1, play: operated},
	{claim: "each message takes effect once while connections break, and all are applied when they are whole again", partitions: 2, play: breaks, served: true},
	{claim: "members that come and go apply each message once, on items that all partitions change", partitions: 4, play: comeAndGo},
	{claim: "each entry of the outbox is sent once and in order, and its answer changes an item once, while an owner is frozen", partitions: 2, play: posts},
	{claim: "an operator lists fences, processes, dead letters and decisions", partitions: 2, play: listed},
	{claim: "other programs read an item's value as the handlers have written it", partitions: 1, play: read},
}
