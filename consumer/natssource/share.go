package natssource

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/shares"
)

// Each member computes by itself what every member of its group is to have, from
// what it knows of the group: who serves which partitions, and who holds them.
// Package shares says how. Then it takes what is free and meant for it, and gives
// back what it has too much: one partition at a time, as long as others take
// them. Members that know the same want the same. One that has heard less may
// want something else; then a swap is refused, or a partition moves once more.

// group is what a member knows of its group when it decides what to do.
type group struct {
	members map[string]memberRecord           // those that live, this one among them
	held    map[streamPartition]string        // the member behind each live lease, of this group or not
	free    map[streamPartition]time.Duration // partitions of ours without a live lease: for how long, as far as we saw
	busy    map[streamPartition]bool          // of ours: those that are being taken or given back
	grace   time.Duration                     // after which another may take what was meant for one
	idle    time.Duration                     // after which anyone may take what nobody took
}

// decision is what a member does next.
type decision struct {
	take []streamPartition // in order
	give *streamPartition  // one that others are to have, if there is such
}

// kind is the partitions that the same members serve.
type kind struct {
	places []streamPartition // in order
	serves []bool            // by member
	lacks  []int             // by member: how many more it is to have, or, below zero, fewer
}

// plan says what the member me does next.
func (g *group) plan(me string) decision {
	ids := slices.Sorted(maps.Keys(g.members))
	kinds := g.kinds(ids)
	g.shareOut(ids, kinds)
	at := slices.Index(ids, me)
	return decision{take: g.take(ids, kinds, at), give: g.give(ids, kinds, at)}
}

// serves lists the partitions that the member takes if it may.
func (r memberRecord) serves() map[streamPartition]bool {
	declined := map[string]bool{}
	for _, p := range r.Declined {
		declined[p] = true
	}
	all := map[streamPartition]bool{}
	for stream, count := range r.Streams {
		for n := range count {
			if p := (streamPartition{stream, n}); len(declined) == 0 || !declined[p.String()] {
				all[p] = true
			}
		}
	}
	return all
}

// kinds sorts the partitions that anybody serves by who does. Members that serve the same
// are looked at once: in a large group they nearly all do.
func (g *group) kinds(ids []string) []*kind {
	var alike []memberRecord
	of := make([]int, len(ids)) // by member: the place of its like
	for m, id := range ids {
		r := g.members[id]
		if of[m] = slices.IndexFunc(alike, r.equal); of[m] < 0 {
			of[m] = len(alike)
			alike = append(alike, r)
		}
	}
	served := map[streamPartition][]bool{} // by place in alike
	for i, r := range alike {
		for p := range r.serves() {
			if served[p] == nil {
				served[p] = make([]bool, len(alike))
			}
			served[p][i] = true
		}
	}
	var kinds []*kind
	for _, p := range slices.SortedFunc(maps.Keys(served), streamPartition.compare) {
		i := slices.IndexFunc(kinds, func(k *kind) bool { return slices.Equal(served[k.places[0]], served[p]) })
		if i < 0 {
			i = len(kinds)
			kinds = append(kinds, &kind{})
			for m := range ids {
				kinds[i].serves = append(kinds[i].serves, served[p][of[m]])
			}
		}
		kinds[i].places = append(kinds[i].places, p)
	}
	return kinds
}

// shareOut computes what each member lacks. What is held by one that is gone, or
// that is not to have it, is to be had by others as soon as it is free.
func (g *group) shareOut(ids []string, kinds []*kind) {
	var all []shares.Kind
	for _, k := range kinds {
		holds := make([]int, len(ids))
		for _, p := range k.places {
			if by, ok := g.held[p]; ok {
				if m, ok := slices.BinarySearch(ids, by); ok && k.serves[m] {
					holds[m]++
				}
			}
		}
		all = append(all, shares.Kind{Name: k.places[0].String(), Size: len(k.places), Takes: k.serves, Holds: holds})
	}
	for i, has := range shares.Fair(ids, all) {
		for m, n := range has {
			kinds[i].lacks = append(kinds[i].lacks, n-all[i].Holds[m])
		}
	}
}

// take lists the free partitions that are for me, which is its place in ids.
func (g *group) take(ids []string, kinds []*kind, me int) []streamPartition {
	var mine, others []streamPartition
	room := 0
	for _, k := range kinds {
		room += k.lacks[me]
		left := slices.Clone(k.lacks)
		for _, p := range k.places {
			if _, held := g.held[p]; held {
				continue
			}
			to, best, name := -1, uint64(0), p.String()
			for m, id := range ids {
				if left[m] <= 0 {
					continue
				}
				if s := score(name, id); to < 0 || s > best {
					to, best = m, s
				}
			}
			left[to]-- // there is one: what is free adds to what they lack
			if _, ours := g.free[p]; ours && to == me {
				mine = append(mine, p)
			} else if ours && k.serves[me] {
				others = append(others, p)
			}
		}
	}
	room -= len(mine)
	for _, p := range others {
		if free := g.free[p]; free >= g.idle || free >= g.grace && room > 0 {
			mine = append(mine, p)
			room--
		}
	}
	return mine
}

// give picks the partition that me has too much and another member lacks.
func (g *group) give(ids []string, kinds []*kind, me int) *streamPartition {
	var given *streamPartition
	best := uint64(0)
	for _, k := range kinds {
		if k.lacks[me] >= 0 {
			continue
		}
		for _, p := range k.places {
			if g.held[p] != ids[me] || g.busy[p] {
				continue
			}
			name := p.String()
			for m, id := range ids {
				if k.lacks[m] <= 0 {
					continue
				}
				if s := score(name, id); given == nil || s > best {
					given, best = &p, s
				}
			}
		}
	}
	return given
}

func (p streamPartition) compare(q streamPartition) int {
	return cmp.Or(cmp.Compare(p.stream, q.stream), cmp.Compare(p.number, q.number))
}

// score says who of several members is to have a partition: the one with the highest, and of
// those the first. It is rendezvous hashing, so that members that take partitions at the
// same time seldom try for the same one.
func score(partition, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(partition))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	x := h.Sum64() // whose high bits say little of the last bytes: mix them, as splitmix64 does
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
