package leasetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

const (
	exploredResources = 5
	exploredSteps     = 60
)

// Explore plays runs of random faults on a store without a server: members join, leave, are cut off
// and come back; requests and answers are lost, and writes land late. No resource may have two
// holders at a time, and in the end each has one. The race detector gets a quarter of the runs.
func Explore(t *testing.T, runs int, open func() cas.Store) {
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
	switch n := x.rand.IntN(20); {
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
