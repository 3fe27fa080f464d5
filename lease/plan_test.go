package lease

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// town is a group in which every member sees the same, and all act at once.
type town struct {
	members map[string]memberRecord
	held    map[Resource]string // not changed, but replaced
	unheld  map[Resource]int    // rounds that nobody had it
	moves   int                 // partitions taken
	givings int
}

func (w *town) group() *group {
	g := &group{
		members: w.members, held: w.held, free: map[Resource]time.Duration{}, busy: map[Resource]bool{},
		grace: 2 * time.Second, idle: 6 * time.Second,
	}
	for _, m := range w.members {
		for p := range m.serves() {
			if _, held := w.held[p]; !held {
				g.free[p] = time.Duration(w.unheld[p]) * time.Second
			}
		}
	}
	return g
}

// step lets every member act once on the same view. Of two that take the same
// partition one gets it, as by a swap.
func (w *town) step(t interface{ Fatalf(string, ...any) }) (changed bool) {
	g := w.group()
	next := maps.Clone(w.held)
	for _, id := range slices.Sorted(maps.Keys(w.members)) {
		d := g.plan(id)
		for _, p := range d.take {
			if !w.members[id].serves()[p] {
				t.Fatalf("%s takes %s, which it does not serve", id, p)
			}
			if by, held := w.held[p]; held {
				t.Fatalf("%s takes %s, which %s holds", id, p, by)
			}
			if _, lost := next[p]; !lost {
				next[p] = id
				w.moves++
				changed = true
			}
		}
		for _, p := range d.give {
			if w.held[p] != id {
				t.Fatalf("%s gives back %s, which it does not hold", id, p)
			}
			delete(next, p)
			w.givings++
			changed = true
		}
	}
	for p := range g.free {
		w.unheld[p]++
	}
	for p := range next {
		delete(w.unheld, p)
	}
	w.held = next
	return changed
}

// settle steps until nothing changes any more.
func (w *town) settle(t interface{ Fatalf(string, ...any) }) {
	quiet := 0
	for range 3000 {
		if w.step(t) {
			quiet = 0
		} else if quiet++; quiet > 8 { // past the grace of what nobody took
			return
		}
	}
	t.Fatalf("the group does not come to rest: %v", w.held)
}

func (w *town) counts() map[string]int {
	counts := map[string]int{}
	for id := range w.members {
		counts[id] = 0
	}
	for _, id := range w.held {
		counts[id]++
	}
	return counts
}

func (w *town) leave(id string) {
	delete(w.members, id)
	w.held = maps.Clone(w.held)
	maps.DeleteFunc(w.held, func(_ Resource, by string) bool { return by == id })
}

func newTown() *town {
	return &town{members: map[string]memberRecord{}, held: map[Resource]string{}, unheld: map[Resource]int{}}
}

func orders(n int32) memberRecord { return memberRecord{Serves: map[string]int32{"orders": n}} }

func serving(streams ...string) memberRecord {
	m := memberRecord{Serves: map[string]int32{}}
	for _, s := range streams {
		m.Serves[s] = 2
	}
	return m
}

func TestSharesAreEqualAndWhatRemainsStaysWhereItIs(t *testing.T) {
	t.Parallel()
	hold := func(counts map[string]int) map[Resource]string {
		held, n := map[Resource]string{}, int32(0)
		for _, id := range slices.Sorted(maps.Keys(counts)) {
			for range counts[id] {
				held[Resource{"orders", n}] = id
				n++
			}
		}
		return held
	}
	for _, c := range []struct {
		name    string
		members map[string]memberRecord
		held    map[string]int
		want    map[string]int
	}{
		{"one has all", map[string]memberRecord{"a": orders(5)}, nil, map[string]int{"a": 5}},
		{"equal", map[string]memberRecord{"a": orders(6), "b": orders(6)}, nil, map[string]int{"a": 3, "b": 3}},
		{"the rest stays with who has it", map[string]memberRecord{"a": orders(5), "b": orders(5)}, map[string]int{"a": 2, "b": 3}, map[string]int{"a": 2, "b": 3}},
		{"also with the other one", map[string]memberRecord{"a": orders(5), "b": orders(5)}, map[string]int{"a": 3, "b": 2}, map[string]int{"a": 3, "b": 2}},
		{"more members than partitions", map[string]memberRecord{"a": orders(1), "b": orders(1), "c": orders(1)}, map[string]int{"b": 1}, map[string]int{"a": 0, "b": 1, "c": 0}},
		{"who serves less has less", map[string]memberRecord{"a": orders(2), "b": orders(10), "c": orders(10)}, nil, map[string]int{"a": 2, "b": 4, "c": 4}},
		{"streams of their own", map[string]memberRecord{"a": orders(9), "b": {Serves: map[string]int32{"other": 3}}}, nil, map[string]int{"a": 9, "b": 3}},
		{"what is declined is not served", map[string]memberRecord{"a": orders(2), "b": {Serves: map[string]int32{"orders": 2}, Declined: []string{"orders/0", "orders/1"}}}, nil, map[string]int{"a": 2, "b": 0}},
		{"who serves more leaves it to who serves less", map[string]memberRecord{"a": serving("x", "y"), "b": serving("x"), "c": serving("y", "z"), "d": serving("z")}, nil, map[string]int{"a": 2, "b": 1, "c": 2, "d": 1}},
		{"a chain of members", map[string]memberRecord{"a": serving("x"), "b": serving("x", "y"), "c": serving("y", "z"), "d": serving("z")}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown()
			w.members, w.held = c.members, hold(c.held)
			w.settle(t)
			got := w.counts()
			if c.want == nil {
				wantFair(t, w)
			} else if !maps.Equal(got, c.want) {
				t.Errorf("shares %v, want %v", got, c.want)
			}
		})
	}
}

func TestMembersThatSeeTheSameShareOutFairlyWithTheFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := int32(rapid.IntRange(1, 40).Draw(t, "partitions"))
		record := memberRecord{Serves: map[string]int32{"orders": total}}
		w, born := newTown(), 0
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			before := w.counts()
			w.moves, w.givings = 0, 0
			least := 0 // moves that any fair sharing needs
			if leave := len(w.members) > 1 && rapid.Bool().Draw(t, "leave"); leave {
				ids := slices.Sorted(maps.Keys(w.members))
				gone := rapid.SampledFrom(ids).Draw(t, "who")
				least = before[gone]
				w.leave(gone)
			} else {
				id := fmt.Sprintf("m%d", born)
				born++
				w.members[id] = record
				least = int(total) / len(w.members)
				if len(w.members) == 1 {
					least = int(total)
				}
			}
			w.settle(t)
			counts := slices.Collect(maps.Values(w.counts()))
			if len(w.held) != int(total) {
				t.Fatalf("%d of %d partitions are held", len(w.held), total)
			}
			if slices.Max(counts)-slices.Min(counts) > 1 {
				t.Fatalf("shares differ by more than one: %v", w.counts())
			}
			if w.moves != least {
				t.Fatalf("%d moves from %v to %v, %d would do", w.moves, before, w.counts(), least)
			}
		}
	})
}

// drawMembers makes members that serve some of three streams each, and decline
// some of their partitions.
func drawMembers(t *rapid.T, most int) map[string]memberRecord {
	members := map[string]memberRecord{}
	for i := range rapid.IntRange(1, most).Draw(t, "members") {
		members[fmt.Sprint("m", i)] = drawMember(t)
	}
	return members
}

func drawMember(t *rapid.T) memberRecord {
	m := memberRecord{Serves: map[string]int32{}}
	for _, stream := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "serves") {
			m.Serves[stream] = int32(rapid.IntRange(1, 6).Draw(t, "partitions"))
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.serves()), Resource.compare) {
		if rapid.IntRange(0, 9).Draw(t, "declines") == 0 {
			m.Declined = append(m.Declined, p.String())
		}
	}
	return m
}

// wantFair checks that every partition that somebody serves is held, and that no
// chain of members who could hand one on to the next leads from one to another
// that holds two fewer: then shares cannot be more equal.
func wantFair(t interface{ Fatalf(string, ...any) }, w *town) {
	served := map[Resource]bool{}
	for _, m := range w.members {
		maps.Copy(served, m.serves())
	}
	for p := range served {
		if _, ok := w.held[p]; !ok {
			t.Fatalf("nobody holds %s", p)
		}
	}
	counts := w.counts()
	for from := range w.members {
		reached, queue := map[string]bool{from: true}, []string{from}
		for ; len(queue) > 0; queue = queue[1:] {
			for p, by := range w.held {
				for id, m := range w.members {
					if by != queue[0] || reached[id] || !m.serves()[p] {
						continue
					}
					if counts[id] < counts[from]-1 {
						t.Fatalf("%s has %d and %s %d: %v", from, counts[from], id, counts[id], w.held)
					}
					reached[id] = true
					queue = append(queue, id)
				}
			}
		}
	}
}

// needed is how many partitions have to be taken for fair shares.
func (w *town) needed() int {
	g := w.group()
	ids := slices.Sorted(maps.Keys(g.members))
	kinds := g.kinds(ids)
	g.shareOut(ids, kinds)
	needed := 0
	for _, k := range kinds {
		for _, n := range k.lacks {
			needed += max(0, n)
		}
	}
	return needed
}

func TestMembersThatServeDifferentStreamsShareOutFairlyWithTheFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newTown()
		w.members = drawMembers(t, 6)
		w.settle(t)
		wantFair(t, w)
		for i := range rapid.IntRange(0, 4).Draw(t, "changes") {
			if ids := slices.Sorted(maps.Keys(w.members)); len(ids) > 1 && rapid.Bool().Draw(t, "leave") {
				w.leave(rapid.SampledFrom(ids).Draw(t, "who"))
			} else {
				w.members[fmt.Sprint("n", i)] = drawMember(t)
			}
			w.moves = 0
			needed := w.needed()
			w.settle(t)
			wantFair(t, w)
			if w.moves != needed {
				t.Fatalf("%d moves, %d are needed", w.moves, needed)
			}
		}
	})
}

// Views are late by some rounds, and different for each member.
func TestMembersWhoseViewsAreLateComeToFairSharesAllTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newTown()
		w.members = drawMembers(t, 5)
		seen := map[string]*group{}
		for round := range rapid.IntRange(5, 40).Draw(t, "rounds") {
			w.members = maps.Clone(w.members)
			switch change := rapid.IntRange(0, 9).Draw(t, "change"); {
			case change == 0 && len(w.members) > 1:
				w.leave(rapid.SampledFrom(slices.Sorted(maps.Keys(w.members))).Draw(t, "who"))
			case change == 1:
				w.members[fmt.Sprint("n", round)] = drawMember(t)
			}
			now := w.group()
			next := maps.Clone(w.held)
			for _, id := range slices.Sorted(maps.Keys(w.members)) {
				if seen[id] == nil || rapid.IntRange(0, 2).Draw(t, "hears") == 0 {
					seen[id] = now
				}
				d := seen[id].plan(id)
				for _, p := range d.take { // by a swap, which a late view does not win
					if _, held := next[p]; !held && seen[id].held[p] == "" {
						next[p] = id
					}
				}
				for _, p := range d.give {
					if w.held[p] == id {
						delete(next, p)
					}
				}
			}
			for p := range now.free {
				w.unheld[p]++
			}
			for p := range next {
				delete(w.unheld, p)
			}
			w.held = next
		}
		w.settle(t)
		wantFair(t, w)
	})
}

func TestALiveLeaseIsNeverTaken(t *testing.T) {
	t.Parallel()
	record := memberRecord{Serves: map[string]int32{"orders": 4}}
	g := &group{
		members: map[string]memberRecord{"a": record},
		held:    map[Resource]string{{"orders", 0}: "gone", {"orders", 1}: ""},
		free:    map[Resource]time.Duration{{"orders", 2}: 0, {"orders", 3}: 0},
	}
	if got, want := g.plan("a").take, []Resource{{"orders", 2}, {"orders", 3}}; !slices.Equal(got, want) {
		t.Errorf("takes %v, want %v", got, want)
	}
}

func TestWhatAnotherDoesNotTakeIsTakenInItsPlace(t *testing.T) {
	t.Parallel()
	record := memberRecord{Serves: map[string]int32{"orders": 4}}
	taken := func(free time.Duration) int {
		g := &group{
			members: map[string]memberRecord{"a": record, "b": record}, held: map[Resource]string{},
			free: map[Resource]time.Duration{}, grace: time.Second, idle: 30 * time.Second,
		}
		for n := range int32(4) {
			g.free[Resource{"orders", n}] = free
		}
		return len(g.plan("a").take)
	}
	for free, want := range map[time.Duration]int{0: 2, 5 * time.Second: 2, 30 * time.Second: 4} {
		if got := taken(free); got != want {
			t.Errorf("free for %v: a takes %d, want %d", free, got, want)
		}
	}
}
