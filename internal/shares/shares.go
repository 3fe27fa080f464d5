// Package shares computes how many partitions each member of a group should have when not every
// member can take every partition. Which ones they are is decided in lease/plan.go for NATS and
// schedules, and in consumer/memsource.
//
// The shares are as equal as possible (max-min fair): a member can get one more only if a member
// with as few or fewer loses one. Among all such shares, Fair chooses the shares that move the
// fewest partitions away from their holders. Names decide the remaining ties. So all members that
// see the same input compute the same shares.
//
// # How
//
// Partitions that the same members can take are one [Kind]. Only the number of partitions of a kind
// matters. The counts are a flow from kinds to members and from members into a pool:
//
//	kind ──▶ member ──▶ pool
//
// A member's n-th partition costs 2n-1, so n partitions cost n². The sum of squares is minimal when
// no partition can be moved, directly or through a chain of members, from one member to another
// that has two fewer (Harvey, Ladner, Lovász and Tamir, Semi-matchings for bipartite graphs and
// load balancing, 2006). The first tie-break is the number of partitions that members get and do
// not hold. The second is a number computed from the names of kind and member.
//
// [Fair] begins with the partitions as held and gives each free partition to a member that has
// fewest. Then it looks for a cycle in the flow that lowers the cost and moves one partition along
// each of its edges, until there is no such cycle. A flow is cheapest exactly when it has no such
// cycle.
//
// Moving one partition to its target leaves the cheapest flow cheapest. So the shares do not change
// while members take free partitions and give back surplus ones.
package shares

import (
	"cmp"
	"hash/fnv"
)

// Kind is a number of partitions that the same members can take.
type Kind struct {
	Name  string // breaks ties; different for each kind
	Size  int
	Takes []bool // by member: whether it can take them
	Holds []int  // by member: how many it holds now; at most Size in sum, 0 if it cannot take them
}

// Fair returns the shares, by kind and member. The shares of a kind add up to its size if any
// member can take it. members are the members' names, all different.
func Fair(members []string, kinds []Kind) [][]int {
	f := newFlow(members, kinds)
	for f.improve() {
	}
	return f.has
}

// flow is one assignment. Its nodes are the members, the kinds, and the pool.
type flow struct {
	kinds  []Kind
	has    [][]int   // by kind and member
	load   []int     // by member
	prefer [][]int64 // by kind and member: the tie-break cost of a partition

	dist []cost // by node: cost of the cheapest path found to it
	from []int  // by node: its predecessor on that path
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

// improve applies one negative cycle and reports whether there was one. It uses the Bellman-Ford
// algorithm, with distance zero at each node at the beginning.
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

// edges calls edge for each edge of the residual graph: kind to member for one partition more of
// the kind, member to kind for one less, and between members and the pool for a load that grows or
// shrinks by one.
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

// beyond returns 1 if the member does not hold its n-th partition, and otherwise 0.
func beyond(n, held int) int64 {
	if n > held {
		return 1
	}
	return 0
}

// roundTrip returns a node on a cycle of predecessors, or -1.
func (f *flow) roundTrip() int {
	seen := make([]int, len(f.from)) // by node: the number of the walk that reached it
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

// take moves one partition along each edge of the cycle through node.
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

// weigh returns the tie-break cost of a partition of a kind with a member. It is a hash, so two
// assignments hardly ever cost the same.
func weigh(kind, member string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(member))
	x := h.Sum64() // FNV's high bits depend little on the last bytes: mix as splitmix64 does
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
