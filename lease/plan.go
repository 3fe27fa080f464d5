package lease

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/shares"
)

// This file decides which resources a member takes and gives back, from what it knows of the group:
// who serves which resources, and who holds them. Package shares computes how many each should have.
//
// Members that know the same compute the same shares. A member that knows less may compute others;
// then a swap is refused, or a resource moves once more.

type group struct {
	members map[string]memberRecord    // the live members, including this one
	held    map[Resource]string        // the member behind each live lease, of this group or not
	free    map[Resource]time.Duration // for how long we saw a resource of ours without a live lease
	busy    map[Resource]bool          // resources of ours that are being taken or given back
	grace   time.Duration              // after which a member may take a free resource of another's share
	idle    time.Duration              // after which anyone may take a free resource
}

type decision struct {
	take []Resource // sorted
	give []Resource // surplus of this member, in the order in which to give it back
}

// kind is a set of resources that the same members serve.
type kind struct {
	places []Resource // sorted
	serves []bool     // by member
	lacks  []int      // by member: how many more it should have; negative: fewer
}

func (g *group) plan(me string) decision {
	ids := slices.Sorted(maps.Keys(g.members))
	kinds := g.kinds(ids)
	g.shareOut(ids, kinds)
	at := slices.Index(ids, me)
	return decision{take: g.take(ids, kinds, at), give: g.give(ids, kinds, at)}
}

func (r memberRecord) serves() map[Resource]bool {
	declined := map[string]bool{}
	for _, p := range r.Declined {
		declined[p] = true
	}
	all := map[Resource]bool{}
	for name, count := range r.Serves {
		for n := range count {
			if p := (Resource{name, n}); len(declined) == 0 || !declined[p.String()] {
				all[p] = true
			}
		}
	}
	return all
}

// kinds groups the resources by the members that serve them. Equal records are handled once,
// because in a large group nearly all are equal.
func (g *group) kinds(ids []string) []*kind {
	var alike []memberRecord
	of := make([]int, len(ids)) // by member: index in alike
	for m, id := range ids {
		r := g.members[id]
		if of[m] = slices.IndexFunc(alike, r.equal); of[m] < 0 {
			of[m] = len(alike)
			alike = append(alike, r)
		}
	}
	served := map[Resource][]bool{} // by index in alike
	for i, r := range alike {
		for p := range r.serves() {
			if served[p] == nil {
				served[p] = make([]bool, len(alike))
			}
			served[p][i] = true
		}
	}
	var kinds []*kind
	for _, p := range slices.SortedFunc(maps.Keys(served), Resource.compare) {
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

// shareOut computes what each member lacks. A resource whose holder is gone or should not have it
// counts for nobody, so that others get it once it is free.
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

// take returns the free resources for the member with index me.
func (g *group) take(ids []string, kinds []*kind, me int) []Resource {
	var mine, others []Resource
	capacity := 0
	for _, k := range kinds {
		capacity += k.lacks[me]
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
			left[to]-- // to is set: each free resource adds to what members lack
			if _, ours := g.free[p]; ours && to == me {
				mine = append(mine, p)
			} else if ours && k.serves[me] {
				others = append(others, p)
			}
		}
	}
	capacity -= len(mine)
	for _, p := range others {
		if free := g.free[p]; free >= g.idle || free >= g.grace && capacity > 0 {
			mine = append(mine, p)
			capacity--
		}
	}
	return mine
}

// give returns the surplus resources of the member with index me that other members lack. Those that
// are being given back already are not among them.
func (g *group) give(ids []string, kinds []*kind, me int) []Resource {
	type candidate struct {
		Resource
		best uint64
	}
	var given []Resource
	for _, k := range kinds {
		surplus := -k.lacks[me]
		if surplus <= 0 {
			continue
		}
		var candidates []candidate
		for _, p := range k.places {
			switch {
			case g.held[p] != ids[me]:
			case g.busy[p]:
				surplus--
			default:
				c, name := candidate{Resource: p}, p.String()
				for m, id := range ids {
					if k.lacks[m] > 0 {
						c.best = max(c.best, score(name, id))
					}
				}
				candidates = append(candidates, c)
			}
		}
		slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.best, a.best), a.compare(b.Resource)) })
		for _, c := range candidates[:max(0, min(surplus, len(candidates)))] {
			given = append(given, c.Resource)
		}
	}
	return given
}

// score ranks members for a resource: the member with the highest score gets it, and of equal
// members the first. This is rendezvous hashing, so members that take resources at the same time
// seldom try the same one.
func score(resource, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(resource))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	x := h.Sum64() // its high bits depend little on the last bytes: mix them, as splitmix64 does
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
