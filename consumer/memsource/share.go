package memsource

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"
)

var errDrainTooLong = errors.New("memsource: the drain took longer than the term")

// forgiveAndRebalance is what a change of members or partitions calls for:
// partitions that were given up may be granted to anyone again.
func (g *Group) forgiveAndRebalance() {
	clear(g.declined)
	g.rebalance()
}

// rebalance moves the group one step towards fair shares: it drains from members
// that hold too much, and grants what is free to those that hold too little. It
// runs again when a drained partition has come back. In a scripted group it does
// nothing.
func (g *Group) rebalance() {
	if g.scripted || len(g.members) == 0 {
		return
	}
	held := map[*Member][]*tenure{}
	var free []place
	total := 0
	for at := range g.places() {
		total++
		switch t := g.leases[at]; {
		case t == nil:
			free = append(free, at)
		case !t.asked:
			held[t.member] = append(held[t.member], t)
		}
	}
	for m, share := range g.shares(total, held) {
		for len(held[m]) > share {
			last := len(held[m]) - 1
			g.drain(held[m][last], g.term)
			held[m] = held[m][:last]
		}
	}
	g.grantFree(free, g.shares(total, held), held)
}

// shares says how many partitions each member is to hold. Where they cannot all
// have the same number, those that hold most keep one more.
func (g *Group) shares(total int, held map[*Member][]*tenure) map[*Member]int {
	byHeld := slices.SortedStableFunc(slices.Values(g.members), func(a, b *Member) int {
		return cmp.Compare(len(held[b]), len(held[a]))
	})
	shares := map[*Member]int{}
	for i, m := range byHeld {
		shares[m] = total / len(byHeld)
		if i < total%len(byHeld) {
			shares[m]++
		}
	}
	return shares
}

func (g *Group) grantFree(free []place, shares map[*Member]int, held map[*Member][]*tenure) {
	count := map[*Member]int{}
	for m := range shares {
		count[m] = len(held[m])
	}
	grants := map[place]*Member{}
	for _, at := range free {
		var to *Member
		for _, m := range g.members {
			if count[m] < shares[m] && !slices.Contains(g.declined[at], m) && (to == nil || count[m] < count[to]) {
				to = m
			}
		}
		if to != nil {
			grants[at] = to
			count[to]++
		}
	}
	if len(grants) == 0 {
		return
	}
	g.number++
	for _, at := range free {
		if to := grants[at]; to != nil {
			g.grant(to, at)
		}
	}
}

// grant records the lease and tells the member.
func (g *Group) grant(m *Member, at place) {
	t := newTenure(m, at)
	g.leases[at] = t
	m.tell(func() { m.start(t) })
	g.broker.notify()
}

// drain asks for the lease back, and takes it when the term is over. A term of
// zero waits for ever.
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
	t.member.tell(t.drain)
}

// take ends the lease at once, if it still is the recorded one, and tells the
// member why.
func (g *Group) take(t *tenure, why error) {
	g.forget(t)
	t.member.tell(func() { t.lose(why) })
}

// forget ends the lease as far as the group is concerned.
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

// heldBy returns the leases that m has as far as the group is concerned, in
// order.
func (g *Group) heldBy(m *Member) []*tenure {
	return slices.DeleteFunc(g.held(), func(t *tenure) bool { return t.member != m })
}

func (g *Group) held() []*tenure {
	return slices.SortedFunc(maps.Values(g.leases), func(a, b *tenure) int {
		return cmp.Or(cmp.Compare(a.at.topic, b.at.topic), cmp.Compare(a.at.number, b.at.number))
	})
}
