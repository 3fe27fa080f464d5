// Package shares says how many partitions each member of a group is to have,
// where not every member can take every partition.
//
// The shares are as equal as can be: no member could have one more if not
// another, that has as few or fewer, had one less. So the member that has least
// has as much as possible, then the one that has second least, and so on. Of all
// ways to reach that, the one that is chosen moves the fewest partitions away
// from those who hold them; and what is still open after that is decided by
// names. Whoever sees the same computes the same.
//
// # How
//
// Partitions that the same members can take are one [Kind]: only how many of
// them a member has matters. The counts are a flow, from kinds to members and
// from members into a pool:
//
//	kind ──▶ member ──▶ pool
//
// A member's n-th partition costs 2n-1, so that n of them cost n²: the sum of
// squares is least where no partition can be moved, be it through a chain of
// members, from one to another that has two fewer (Harvey, Ladner, Lovász and
// Tamir, Semi-matchings for bipartite graphs and load balancing, 2006). Among
// those that cost the same, a partition costs one if the member does not hold
// it, and among those, a number that is made of the names of kind and member.
//
// [Fair] begins with what is held, gives each free partition to a member that
// has fewest, and then, as long as there is one, takes a round trip through the
// flow that lowers the cost: it moves one partition along each of its edges. A
// flow is the cheapest exactly when there is no such trip.
//
// Moving one partition to where it is to go leaves the cheapest flow the
// cheapest. So the shares do not change while members take what is free and
// give back what they have too much.
package shares

import (
	"cmp"
	"hash/fnv"
)

// Kind is a number of partitions which the same members can take.
type Kind struct {
	Name  string // decides what costs the same; different for each kind
	Size  int
	Takes []bool // by member: whether it can take them
	Holds []int  // by member: how many it holds now; Size at most in all, none where it cannot take them
}

// Fair returns how many of each kind each member is to have, by kind and member.
// They add up to the size of each kind that some member can take. members are
// the members' names, all different.
func Fair(members []string, kinds []Kind) [][]int {
	f := newFlow(members, kinds)
	for f.improve() {
	}
	return f.has
}

// flow is a way to share out. Its nodes are the members, the kinds, and the pool.
type flow struct {
	kinds  []Kind
	has    [][]int   // by kind and member
	load   []int     // by member
	prefer [][]int64 // by kind and member: what a partition costs beside

	dist []cost // by node: the cheapest way there that was found
	from []int  // by node: the one before it on that way
}

func newFlow(members []string, kinds []Kind) *flow {
	nodes := len(members) + len(kinds) + 1
	f := &flow{kinds: kinds, load: make([]int, len(members)), dist: make([]cost, nodes), from: make([]int, nodes)}
	for _, k := range kinds {
		has, prefer := make([]int, len(members)), make([]int64, len(members))
		for m, name := range members {
			prefer[m] = weigh(k.Name, name)
			if k.Takes[m] {
				has[m] = k.Holds[m]
				f.load[m] += has[m]
			}
		}
		f.has, f.prefer = append(f.has, has), append(f.prefer, prefer)
	}
	for k, kind := range kinds {
		for range kind.Size - sum(f.has[k]) {
			to := -1
			for m, takes := range kind.Takes {
				if takes && (to < 0 || cmp.Or(cmp.Compare(f.load[m], f.load[to]), cmp.Compare(f.prefer[k][m], f.prefer[k][to])) < 0) {
					to = m
				}
			}
			if to >= 0 {
				f.has[k][to]++
				f.load[to]++
			}
		}
	}
	return f
}

// cost is compared in this order.
type cost struct{ load, moves, other int64 }

func (c cost) plus(d cost) cost {
	return cost{c.load + d.load, c.moves + d.moves, c.other + d.other}
}

func (c cost) less(d cost) bool {
	return cmp.Or(cmp.Compare(c.load, d.load), cmp.Compare(c.moves, d.moves), cmp.Compare(c.other, d.other)) < 0
}

func (f *flow) pool() int { return len(f.dist) - 1 }

// improve takes one round trip that lowers the cost, if there is one. It finds
// it as Bellman and Ford do: ways are made cheaper edge by edge, from no cost at
// all at each node, until that is over or one of them leads back to itself.
func (f *flow) improve() bool {
	clear(f.dist)
	for n := range f.from {
		f.from[n] = -1
	}
	for changed := true; changed; {
		changed = false
		f.edges(func(from, to int, c cost) {
			if c = f.dist[from].plus(c); c.less(f.dist[to]) {
				f.dist[to], f.from[to], changed = c, from, true
			}
		})
		if at := f.roundTrip(); at >= 0 {
			f.take(at)
			return true
		}
	}
	return false
}

// edges calls edge for each move of one partition that can be made now: from a
// kind to a member that is to have one more of it, from a member that is to have
// one less back to the kind, and between members and the pool as their loads
// grow and shrink by it.
func (f *flow) edges(edge func(from, to int, c cost)) {
	members := len(f.load)
	for k, kind := range f.kinds {
		for m, takes := range kind.Takes {
			if !takes {
				continue
			}
			n := f.has[k][m]
			edge(members+k, m, cost{moves: beyond(n+1, kind.Holds[m]), other: f.prefer[k][m]})
			if n > 0 {
				edge(m, members+k, cost{moves: -beyond(n, kind.Holds[m]), other: -f.prefer[k][m]})
			}
		}
	}
	for m, n := range f.load {
		edge(m, f.pool(), cost{load: int64(2*n + 1)})
		if n > 0 {
			edge(f.pool(), m, cost{load: -int64(2*n - 1)})
		}
	}
}

// beyond is 1 if the n-th partition is more than what is held.
func beyond(n, held int) int64 {
	if n > held {
		return 1
	}
	return 0
}

// roundTrip returns a node whose cheapest way leads back to itself, or -1.
func (f *flow) roundTrip() int {
	seen := make([]int, len(f.from)) // by which walk
	for n := range f.from {
		at := n
		for at >= 0 && seen[at] == 0 {
			seen[at] = n + 1
			at = f.from[at]
		}
		if at >= 0 && seen[at] == n+1 {
			return at
		}
	}
	return -1
}

// take moves one partition along each edge of the round trip through a node.
func (f *flow) take(node int) {
	members := len(f.load)
	for to := node; ; {
		from := f.from[to]
		switch pool := f.pool(); {
		case to == pool:
			f.load[from]++
		case from == pool:
			f.load[to]--
		case from >= members:
			f.has[from-members][to]++
		default:
			f.has[to-members][from]--
		}
		if to = from; to == node {
			return
		}
	}
}

// weigh is what a partition of a kind costs with a member where nothing else
// tells ways to share out apart: about as good as drawn by lot, so that hardly
// ever two ways cost the same.
func weigh(kind, member string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(member))
	x := h.Sum64() // whose high bits say little of the last bytes: mix them, as splitmix64 does
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int64((x ^ x>>31) >> 32)
}

func sum(ns []int) int {
	total := 0
	for _, n := range ns {
		total += n
	}
	return total
}
