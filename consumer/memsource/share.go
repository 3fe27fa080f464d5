package memsource

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/shares"
)

// This file decides how a group that has no script divides its partitions, with internal/shares,
// and drains before it moves one.

var errDrainTooLong = errors.New("memsource: the drain took longer than the term")

// resetAndRebalance also allows grants of partitions to members that have given them up.
func (g *Group) resetAndRebalance() {
	clear(g.declined)
	g.rebalance()
}

type kind struct {
	places []topicPartition
	takes  []bool // by member
	free   []topicPartition
	held   [][]*tenure // by member, without those that are revoked
	goal   []int       // by member: how many it should hold
}

// rebalance moves the group one step towards fair assignments: it drains from members that hold too
// many, and grants free partitions to members that hold too few. It runs again when a drained
// partition has come back. In a scripted group it does nothing.
func (g *Group) rebalance() {
	if g.scripted || len(g.members) == 0 {
		return
	}
	kinds := g.shareOut()
	for _, k := range kinds {
		for m, ts := range k.held {
			for _, t := range ts[min(len(ts), k.goal[m]):] {
				g.drain(t, g.term)
			}
		}
	}
	g.grantFree(kinds)
}

func (g *Group) shareOut() []*kind {
	kinds := g.kinds()
	var names []string
	for _, m := range g.members {
		names = append(names, m.name)
	}
	var all []shares.Kind
	for _, k := range kinds {
		holds := make([]int, len(names))
		for m, ts := range k.held {
			holds[m] = len(ts)
		}
		first := k.places[0]
		all = append(all, shares.Kind{Name: fmt.Sprint(first.topic, "/", first.number), Size: len(k.places), Takes: k.takes, Holds: holds})
	}
	for i, goal := range shares.Fair(names, all) {
		kinds[i].goal = goal
	}
	return kinds
}

// kinds groups the partitions by the members that have not given them up.
func (g *Group) kinds() []*kind {
	var kinds []*kind
	for at := range g.places() {
		var takes []bool
		for _, m := range g.members {
			takes = append(takes, !slices.Contains(g.declined[at], m) && !slices.Contains(g.hung[at], m))
		}
		i := slices.IndexFunc(kinds, func(k *kind) bool { return slices.Equal(k.takes, takes) })
		if i < 0 {
			i = len(kinds)
			kinds = append(kinds, &kind{takes: takes, held: make([][]*tenure, len(takes))})
		}
		k := kinds[i]
		k.places = append(k.places, at)
		switch t := g.leases[at]; {
		case t == nil:
			k.free = append(k.free, at)
		case !t.asked:
			if m := slices.Index(g.members, t.member); m >= 0 && takes[m] {
				k.held[m] = append(k.held[m], t)
			}
		}
	}
	return kinds
}

func (g *Group) grantFree(kinds []*kind) {
	grants := map[topicPartition]*Member{}
	count := make([]int, len(g.members))
	for _, k := range kinds {
		lacks := make([]int, len(g.members))
		for m := range lacks {
			lacks[m] = k.goal[m] - len(k.held[m])
		}
		for _, at := range k.free {
			to := -1
			for m, n := range lacks {
				if n > 0 && (to < 0 || count[m] < count[to]) {
					to = m
				}
			}
			if to >= 0 {
				grants[at] = g.members[to]
				lacks[to]--
				count[to]++
			}
		}
	}
	if len(grants) == 0 {
		return
	}
	g.generation++
	for at := range g.places() {
		if to := grants[at]; to != nil {
			g.grant(to, at)
		}
	}
}

func (g *Group) grant(m *Member, at topicPartition) {
	t := newTenure(m, at)
	g.leases[at] = t
	m.deliver(func() { m.start(t) })
	g.broker.notify()
}

// drain revokes the lease, and takes it after the term. A term of zero waits for ever.
func (g *Group) drain(t *tenure, term time.Duration) {
	if t.asked {
		return
	}
	t.asked = true
	if term > 0 {
		t.deadline = time.AfterFunc(term, func() {
			g.broker.mu.Lock()
			defer g.broker.mu.Unlock()
			if g.leases[t.at] == t {
				g.take(t, errDrainTooLong)
				g.rebalance()
			}
		})
	}
	t.member.deliver(func() { t.Revoke() })
}

func (g *Group) take(t *tenure, why error) {
	g.forget(t)
	t.member.deliver(func() { t.Lose(why) })
}

func (g *Group) forget(t *tenure) {
	t.asked = true
	if t.deadline != nil {
		t.deadline.Stop()
	}
	if g.leases[t.at] == t {
		delete(g.leases, t.at)
	}
	g.broker.notify()
}

func (g *Group) heldBy(m *Member) []*tenure {
	return slices.DeleteFunc(g.held(), func(t *tenure) bool { return t.member != m })
}

func (g *Group) held() []*tenure {
	return slices.SortedFunc(maps.Values(g.leases), func(a, b *tenure) int {
		return cmp.Or(cmp.Compare(a.at.topic, b.at.topic), cmp.Compare(a.at.number, b.at.number))
	})
}
