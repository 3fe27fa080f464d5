package natssource

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"time"
)

// group is what a member knows of its group when it decides what to do. Members
// that know the same decide the same.
type group struct {
	members map[string]memberRecord   // those that live, this one among them
	held    map[place]string          // the member behind each live lease, of this group or not
	free    map[place]time.Duration   // partitions without a live lease: for how long, as far as we saw
	busy    map[place]bool            // of ours: those that are being taken or given back
	grace   time.Duration             // after which another may take what was meant for one
	idle    time.Duration             // after which anyone may take what nobody took
	served  map[string]map[place]bool // by member; filled in by plan
}

// decision is what a member does next.
type decision struct {
	take []place // in order
	give *place  // one that others are to have, if there is such
}

// plan says what the member me does next: it takes free partitions up to its
// share, and gives one back if it has more and a member that can take it has
// less.
func (g *group) plan(me string) decision {
	g.served = map[string]map[place]bool{}
	for id, m := range g.members {
		g.served[id] = m.serves()
	}
	room := g.shares()
	for _, id := range g.held {
		if _, ok := room[id]; ok {
			room[id]--
		}
	}
	return decision{take: g.take(me, room), give: g.give(me, room)}
}

// serves lists the partitions that the member takes if it may.
func (r memberRecord) serves() map[place]bool {
	all := map[place]bool{}
	for stream, count := range r.Streams {
		for n := range count {
			if p := (place{stream, n}); !slices.Contains(r.Declined, p.String()) {
				all[p] = true
			}
		}
	}
	return all
}

// shares says how many partitions each member is to have: the same number,
// unless it serves fewer. What remains goes, one each, to those that hold it
// already, so that nothing moves for it, and otherwise by id: by nothing that
// changes while partitions are being taken, and looks different to each.
func (g *group) shares() map[string]int {
	union, holds := map[place]bool{}, map[string]int{}
	for _, ps := range g.served {
		maps.Copy(union, ps)
	}
	for _, id := range g.held {
		holds[id]++
	}
	ids := slices.SortedFunc(maps.Keys(g.members), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(g.served[a]), len(g.served[b])), cmp.Compare(a, b))
	})
	shares, left := map[string]int{}, len(union)
	for i, id := range ids { // those that serve least first: what they cannot have, the rest shares
		if most := len(g.served[id]); most <= left/(len(ids)-i) {
			shares[id], left = most, left-most
			continue
		}
		rest := ids[i:]
		each, extra := left/len(rest), left%len(rest)
		slices.SortFunc(rest, func(a, b string) int {
			return cmp.Or(more(holds[b], each)-more(holds[a], each), cmp.Compare(a, b))
		})
		for j, id := range rest {
			shares[id] = each
			if j < extra {
				shares[id]++
			}
		}
		break
	}
	return shares
}

func more(n, than int) int {
	if n > than {
		return 1
	}
	return 0
}

// take lists the free partitions that are for me. room is how many more each
// member is to have; what free partitions fill of it is subtracted.
func (g *group) take(me string, room map[string]int) []place {
	var mine, others []place
	for _, p := range g.scarceFirst() {
		to := ""
		for id := range g.members {
			if room[id] > 0 && g.served[id][p] && (to == "" || rank(p, id, to) < 0) {
				to = id
			}
		}
		switch to {
		case me:
			mine = append(mine, p)
			room[me]--
		default:
			others = append(others, p)
			if to != "" {
				room[to]--
			}
		}
	}
	for _, p := range others {
		if !g.served[me][p] {
			continue
		}
		switch free := g.free[p]; {
		case free >= g.idle:
			mine = append(mine, p)
			room[me]--
		case free >= g.grace && room[me] > 0:
			mine = append(mine, p)
			room[me]--
		}
	}
	return mine
}

// scarceFirst lists the free partitions, those that few can take first.
func (g *group) scarceFirst() []place {
	takers := map[place]int{}
	for _, ps := range g.served {
		for p := range ps {
			takers[p]++
		}
	}
	return slices.SortedFunc(maps.Keys(g.free), func(a, b place) int {
		return cmp.Or(cmp.Compare(takers[a], takers[b]), a.compare(b))
	})
}

// give picks the partition that me has too much and another member can take.
func (g *group) give(me string, room map[string]int) *place {
	if room[me] >= 0 {
		return nil
	}
	var given *place
	best := ""
	for _, p := range slices.SortedFunc(maps.Keys(g.held), place.compare) {
		if g.held[p] != me || g.busy[p] {
			continue
		}
		for id := range g.members {
			if id == me || room[id] <= 0 || !g.served[id][p] {
				continue
			}
			if given == nil || score(p, id) > score(*given, best) {
				given, best = &p, id
			}
		}
	}
	return given
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.stream, q.stream), cmp.Compare(p.number, q.number))
}

// rank orders two members by who of them is to have p, the first one first:
// rendezvous hashing, so that members that take partitions at the same time
// seldom try for the same one.
func rank(p place, a, b string) int {
	return cmp.Or(cmp.Compare(score(p, b), score(p, a)), cmp.Compare(a, b))
}

func score(p place, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.String()))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	x := h.Sum64() // whose high bits say little of the last bytes: mix them, as splitmix64 does
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
