package shares

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawKinds makes a group. What is held is held by members that can take it.
func drawKinds(t *rapid.T, members, kinds, size int) ([]string, []Kind) {
	var names []string
	for m := range rapid.IntRange(1, members).Draw(t, "members") {
		names = append(names, fmt.Sprint("m", m))
	}
	var ks []Kind
	for k := range rapid.IntRange(1, kinds).Draw(t, "kinds") {
		kind := Kind{Name: fmt.Sprint("k", k), Size: rapid.IntRange(1, size).Draw(t, "size"), Takes: make([]bool, len(names)), Holds: make([]int, len(names))}
		left := kind.Size
		for m := range names {
			if kind.Takes[m] = rapid.Bool().Draw(t, "takes"); kind.Takes[m] {
				kind.Holds[m] = rapid.IntRange(0, left).Draw(t, "holds")
				left -= kind.Holds[m]
			}
		}
		ks = append(ks, kind)
	}
	return names, ks
}

func loads(members []string, has [][]int) []int {
	load := make([]int, len(members))
	for _, row := range has {
		for m, n := range row {
			load[m] += n
		}
	}
	return load
}

// value is how good a way to share out is.
type value struct {
	loads []int // ascending
	moves int   // partitions that are not with who holds them
}

func valueOf(kinds []Kind, members []string, has [][]int) value {
	v := value{loads: loads(members, has)}
	slices.Sort(v.loads)
	for k, row := range has {
		for m, n := range row {
			v.moves += max(0, n-kinds[k].Holds[m])
		}
	}
	return v
}

// better: whoever has least has more, then who has second least, and so on, or
// they have the same, with fewer moves.
func (v value) better(w value) bool {
	return cmp.Or(slices.Compare(w.loads, v.loads), cmp.Compare(v.moves, w.moves)) < 0
}

func (v value) equal(w value) bool { return slices.Equal(v.loads, w.loads) && v.moves == w.moves }

// best tries all ways to share out.
func best(members []string, kinds []Kind) value {
	var found *value
	has := make([][]int, len(kinds))
	for k := range has {
		has[k] = make([]int, len(members))
	}
	var deal func(k, m, left int)
	next := func(k int) {
		if k == len(kinds) {
			if v := valueOf(kinds, members, has); found == nil || v.better(*found) {
				found = &v
			}
			return
		}
		deal(k, 0, kinds[k].Size)
	}
	deal = func(k, m, left int) {
		if m == len(members) {
			if left == 0 || !slices.Contains(kinds[k].Takes, true) {
				next(k + 1)
			}
			return
		}
		most := 0
		if kinds[k].Takes[m] {
			most = left
		}
		for n := range most + 1 {
			has[k][m] = n
			deal(k, m+1, left-n)
		}
		has[k][m] = 0
	}
	next(0)
	return *found
}

func wantWhole(t interface{ Fatalf(string, ...any) }, members []string, kinds []Kind, has [][]int) {
	for k, kind := range kinds {
		total := 0
		for m := range members {
			if n := has[k][m]; n < 0 || n > 0 && !kind.Takes[m] {
				t.Fatalf("%s has %d of %s", members[m], n, kind.Name)
			}
			total += has[k][m]
		}
		if total != kind.Size && slices.Contains(kind.Takes, true) {
			t.Fatalf("%d of %d of %s are shared out", total, kind.Size, kind.Name)
		}
	}
}

func TestSharesAreAsEqualAsCanBeWithTheFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members, kinds := drawKinds(t, 4, 3, 4)
		has := Fair(members, kinds)
		wantWhole(t, members, kinds, has)
		if got, want := valueOf(kinds, members, has), best(members, kinds); !got.equal(want) {
			t.Fatalf("%v: loads and moves %v, want %v", has, got, want)
		}
	})
}

// What a large group gets is checked by what makes it the most equal there is:
// no chain of members leads from one to another that has two fewer.
func TestInALargeGroupNobodyCouldHaveOneMoreFromWhoHasTwoMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members, kinds := drawKinds(t, 30, 6, 60)
		has := Fair(members, kinds)
		wantWhole(t, members, kinds, has)
		load := loads(members, has)
		for from := range members {
			reached, queue := map[int]bool{from: true}, []int{from}
			for ; len(queue) > 0; queue = queue[1:] {
				for k, kind := range kinds {
					for to, takes := range kind.Takes {
						if !takes || has[k][queue[0]] == 0 || reached[to] {
							continue
						}
						if load[to] < load[from]-1 {
							t.Fatalf("%s has %d and %s %d: %v of %+v", members[from], load[from], members[to], load[to], has, kinds)
						}
						reached[to] = true
						queue = append(queue, to)
					}
				}
			}
		}
	})
}

func TestSharesDoNotChangeOnTheWayToThem(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members, kinds := drawKinds(t, 8, 4, 12)
		want := Fair(members, kinds)
		for range 4 { // some that take, some that give back
			for k := range kinds {
				kinds[k].Holds = slices.Clone(kinds[k].Holds)
				free := kinds[k].Size - sum(kinds[k].Holds)
				for m := range members {
					switch now, goal := kinds[k].Holds[m], want[k][m]; {
					case now > goal:
						back := rapid.IntRange(0, now-goal).Draw(t, "gives")
						kinds[k].Holds[m] -= back
					case now < goal:
						more := rapid.IntRange(0, min(goal-now, free)).Draw(t, "takes")
						kinds[k].Holds[m] += more
						free -= more
					}
				}
			}
			if now := Fair(members, kinds); !reflect.DeepEqual(now, want) {
				t.Fatalf("%v, before %v; now held %+v", now, want, kinds)
			}
		}
	})
}

func TestTheOrderOfMembersAndKindsDecidesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members, kinds := drawKinds(t, 8, 4, 12)
		has := Fair(members, kinds)
		ms := rapid.Permutation(indexes(len(members))).Draw(t, "members")
		ks := rapid.Permutation(indexes(len(kinds))).Draw(t, "kinds")
		others := make([]string, len(members))
		for i, m := range ms {
			others[i] = members[m]
		}
		var otherKinds []Kind
		for _, k := range ks {
			kind := Kind{Name: kinds[k].Name, Size: kinds[k].Size}
			for _, m := range ms {
				kind.Takes, kind.Holds = append(kind.Takes, kinds[k].Takes[m]), append(kind.Holds, kinds[k].Holds[m])
			}
			otherKinds = append(otherKinds, kind)
		}
		for i, row := range Fair(others, otherKinds) {
			for j, n := range row {
				if want := has[ks[i]][ms[j]]; n != want {
					t.Fatalf("%s has %d of %s in one order, %d in another", others[j], want, otherKinds[i].Name, n)
				}
			}
		}
	})
}

func indexes(n int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return all
}

// A group at a size beyond what is usual, as it starts, and as one member more
// joins it.
func BenchmarkFair(b *testing.B) {
	var members []string
	for m := range 64 {
		members = append(members, fmt.Sprint("m", m))
	}
	group := func(held int) []Kind {
		var kinds []Kind
		for k := range 4 {
			kind := Kind{Name: fmt.Sprint("k", k), Size: 256}
			for m := range members {
				kind.Takes = append(kind.Takes, m%4 != k)
				kind.Holds = append(kind.Holds, 0)
			}
			kinds = append(kinds, kind)
		}
		if held > 0 {
			for k, row := range Fair(members[:held], cut(kinds, held)) {
				copy(kinds[k].Holds, row)
			}
		}
		return kinds
	}
	for _, c := range []struct {
		name string
		held int
	}{{"all is free", 0}, {"one joins", 63}, {"at rest", 64}} {
		kinds := group(c.held)
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				Fair(members, kinds)
			}
		})
	}
}

func cut(kinds []Kind, members int) []Kind {
	var cut []Kind
	for _, k := range kinds {
		k.Takes, k.Holds = k.Takes[:members], k.Holds[:members]
		cut = append(cut, k)
	}
	return cut
}
