package natssource

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
	held    map[place]string
	unheld  map[place]int // rounds that nobody had it
	moves   int           // partitions taken
	givings int
}

func (w *town) group() *group {
	g := &group{
		members: w.members, held: w.held, free: map[place]time.Duration{}, busy: map[place]bool{},
		grace: 5 * time.Second, idle: 30 * time.Second,
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
		if d.give != nil {
			if w.held[*d.give] != id {
				t.Fatalf("%s gives back %s, which it does not hold", id, *d.give)
			}
			delete(next, *d.give)
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
		} else if quiet++; quiet > 40 { // past the grace of what nobody took
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
	maps.DeleteFunc(w.held, func(_ place, by string) bool { return by == id })
}

func newTown() *town {
	return &town{members: map[string]memberRecord{}, held: map[place]string{}, unheld: map[place]int{}}
}

func TestSharesAreEqualAndWhatRemainsStaysWhereItIs(t *testing.T) {
	t.Parallel()
	orders := func(n int32) memberRecord { return memberRecord{Streams: map[string]int32{"orders": n}} }
	hold := func(counts map[string]int) map[place]string {
		held, n := map[place]string{}, int32(0)
		for _, id := range slices.Sorted(maps.Keys(counts)) {
			for range counts[id] {
				held[place{"orders", n}] = id
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
		{"the rest goes by id where nobody holds more", map[string]memberRecord{"a": orders(5), "b": orders(5)}, nil, map[string]int{"a": 3, "b": 2}},
		{"the rest stays with who has it", map[string]memberRecord{"a": orders(5), "b": orders(5)}, map[string]int{"a": 2, "b": 3}, map[string]int{"a": 2, "b": 3}},
		{"what is held on the way to a share changes nothing", map[string]memberRecord{"a": orders(5), "b": orders(5)}, map[string]int{"a": 0, "b": 2}, map[string]int{"a": 3, "b": 2}},
		{"more members than partitions", map[string]memberRecord{"a": orders(1), "b": orders(1), "c": orders(1)}, map[string]int{"b": 1}, map[string]int{"a": 0, "b": 1, "c": 0}},
		{"who serves less has less", map[string]memberRecord{"a": orders(2), "b": orders(10), "c": orders(10)}, nil, map[string]int{"a": 2, "b": 4, "c": 4}},
		{"streams of their own", map[string]memberRecord{"a": orders(9), "b": {Streams: map[string]int32{"other": 3}}}, nil, map[string]int{"a": 9, "b": 3}},
		{"what is declined is not served", map[string]memberRecord{"a": orders(2), "b": {Streams: map[string]int32{"orders": 2}, Declined: []string{"orders/0", "orders/1"}}}, nil, map[string]int{"a": 2, "b": 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := &group{members: c.members, held: hold(c.held)}
			g.plan("a") // fills in who serves what
			if got := g.shares(); !maps.Equal(got, c.want) {
				t.Errorf("shares %v, want %v", got, c.want)
			}
		})
	}
}

func TestMembersThatSeeTheSameShareOutFairlyWithTheFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := int32(rapid.IntRange(1, 40).Draw(t, "partitions"))
		record := memberRecord{Streams: map[string]int32{"orders": total}}
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

func TestWhoeverServesWhatEveryPartitionIsTakenByOneThatServesIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newTown()
		all := map[place]bool{}
		for i := range rapid.IntRange(1, 5).Draw(t, "members") {
			m := memberRecord{Streams: map[string]int32{}}
			for _, stream := range []string{"a", "b", "c"} {
				if rapid.Bool().Draw(t, "serves") {
					m.Streams[stream] = int32(rapid.IntRange(1, 8).Draw(t, "partitions"))
				}
			}
			for p := range m.serves() {
				if rapid.IntRange(0, 5).Draw(t, "declines") == 0 {
					m.Declined = append(m.Declined, p.String())
				}
			}
			for p := range m.serves() {
				all[p] = true
			}
			w.members[fmt.Sprint("m", i)] = m
		}
		for range 400 { // it may go on swapping what few can take; it must not leave any idle
			w.step(t)
			if len(w.held) == len(all) {
				return
			}
		}
		t.Fatalf("%d of %d partitions are held", len(w.held), len(all))
	})
}

func TestALiveLeaseIsNeverTaken(t *testing.T) {
	t.Parallel()
	record := memberRecord{Streams: map[string]int32{"orders": 4}}
	g := &group{
		members: map[string]memberRecord{"a": record},
		held:    map[place]string{{"orders", 0}: "gone", {"orders", 1}: ""},
		free:    map[place]time.Duration{{"orders", 2}: 0, {"orders", 3}: 0},
	}
	if got, want := g.plan("a").take, []place{{"orders", 2}, {"orders", 3}}; !slices.Equal(got, want) {
		t.Errorf("takes %v, want %v", got, want)
	}
}

func TestWhatAnotherDoesNotTakeIsTakenInItsPlace(t *testing.T) {
	t.Parallel()
	record := memberRecord{Streams: map[string]int32{"orders": 4}}
	taken := func(free time.Duration) int {
		g := &group{
			members: map[string]memberRecord{"a": record, "b": record}, held: map[place]string{},
			free: map[place]time.Duration{}, grace: time.Second, idle: 30 * time.Second,
		}
		for n := range int32(4) {
			g.free[place{"orders", n}] = free
		}
		return len(g.plan("a").take)
	}
	for free, want := range map[time.Duration]int{0: 2, 5 * time.Second: 2, 30 * time.Second: 4} {
		if got := taken(free); got != want {
			t.Errorf("free for %v: a takes %d, want %d", free, got, want)
		}
	}
}
