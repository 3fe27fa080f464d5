package shardsink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// Processes route as they like, know the first databases of three or all, in any
// order where that is allowed, or one database without shards. They die at any step,
// and any of them does something at any step of another.
func TestNoRoutingAndNoCrashMakesTwoClaimedFencesOfAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Bool().Draw(t, "the order differs"))
		for range rapid.IntRange(1, 12).Draw(t, "actions") {
			w.act(2)
			w.wantOneClaimedFence()
		}
	})
}

func TestPartitionsBeginWhereTheFirstShardSaysAndKnownTopicsAtTheEarliest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, false)
		for range rapid.IntRange(1, 12).Draw(t, "actions") {
			w.act(2)
			w.wantBeginnings()
		}
		w.wantClaimable()
	})
}

const earliest = 7

type randomWorld struct {
	*rapid.T
	dbs       []*memsink.Sink
	processes []*randomProcess
	seedings  epoch.Offset
}

type randomProcess struct {
	w     *randomWorld
	name  string
	sink  epoch.Sink[*memsink.Tx]
	steps int // until it dies
	depth int // of others' actions, at its steps
}

func newWorld(t *rapid.T, order bool) *randomWorld {
	w := &randomWorld{T: t, dbs: newDatabases(3)}
	for i := range rapid.IntRange(2, 4).Draw(t, "processes") {
		p := &randomProcess{w: w, name: string(rune('A' + i))}
		var mine []epoch.Sink[*memsink.Tx]
		for _, db := range w.dbs {
			mine = append(mine, p.open(db))
		}
		switch kind := rapid.IntRange(0, 4).Draw(t, "kind of "+p.name); {
		case kind == 0: // it has no shards
			p.sink = mine[0]
		case kind < 3 && order:
			p.sink = p.routing(permuted(t, mine, "order of "+p.name))
		default:
			p.sink = p.routing(mine[:rapid.IntRange(1, 3).Draw(t, "shards of "+p.name)])
		}
		w.processes = append(w.processes, p)
	}
	return w
}

func (p *randomProcess) routing(shards []epoch.Sink[*memsink.Tx]) epoch.Sink[*memsink.Tx] {
	to := rapid.SliceOfN(rapid.IntRange(0, len(shards)-1), 3, 3).Draw(p.w.T, "route of "+p.name)
	s, err := shardsink.New(func(o epoch.Partition, _ int) int { return to[o.Number] }, shards...)
	if err != nil {
		p.w.Fatal(err)
	}
	return s
}

func permuted[T any](t *rapid.T, of []T, label string) []T {
	var all []T
	for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(t, label) {
		all = append(all, of[i])
	}
	return all
}

// open is the process's own way to a database.
func (p *randomProcess) open(db *memsink.Sink) *memsink.Sink {
	mine := db.Open()
	mine.Script(memsink.Hooks{
		Fence: func(_ context.Context, _ epoch.Partition, do func() error) error { return p.step(do) },
		Look:  func(_ context.Context, _ []epoch.Partition, do func() error) error { return p.step(do) },
		Seed:  func(_ context.Context, _ []epoch.Start, do func() error) error { return p.step(do) },
		Claim: func(_ context.Context, _ epoch.Claim, do func() error) error { return p.step(do) },
	})
	return mine
}

func (p *randomProcess) step(do func() error) error {
	if p.depth > 0 && rapid.IntRange(0, 3).Draw(p.w.T, "meanwhile") == 0 {
		p.w.act(p.depth - 1)
	}
	if p.steps--; p.steps >= 0 {
		return do()
	}
	if rapid.Bool().Draw(p.w.T, "the last step is taken") {
		_ = do()
	}
	return errCrash
}

// act has a process claim a partition, or die on the way.
func (w *randomWorld) act(depth int) {
	actor := w.processes[rapid.IntRange(0, len(w.processes)-1).Draw(w.T, "who")]
	was := *actor
	defer func() { actor.steps, actor.depth = was.steps, was.depth }() // it may be at something else, too
	actor.depth = depth
	actor.steps = 1000
	if rapid.Bool().Draw(w.T, "it dies") {
		actor.steps = rapid.IntRange(0, 12).Draw(w.T, "steps")
	}
	ps := rapid.SliceOfNDistinct(rapid.Int32Range(0, 2), 1, 3, rapid.ID).Draw(w.T, "partitions")
	var froms []epoch.Start
	w.seedings++
	for _, n := range ps {
		s := start(orders(n))
		s.Next, s.Earliest = epoch.Position{Offset: 100 + w.seedings}, epoch.Position{Offset: earliest}
		froms = append(froms, s)
	}
	f, err := claims(context.Background(), actor.sink, froms[0], froms[1:]...)
	w.Logf("%s: %v: %v, %v", actor.name, ps, f.Epoch, err)
	if err == nil || slices.ContainsFunc([]error{errCrash, epoch.ErrElsewhere, epoch.ErrMissing, epoch.ErrStale, epoch.ErrLogChanged},
		func(is error) bool { return errors.Is(err, is) }) {
		return
	}
	w.Fatalf("%s claims %v: %v", actor.name, ps, err)
}

// rows are those of p, by database.
func (w *randomWorld) rows(p epoch.Partition) (rows [3]string, fences []epoch.Fence) {
	for i, db := range w.dbs {
		f, ok := db.Fences()[p]
		if !ok {
			continue
		}
		rows[i] = fmt.Sprintf("%+v", f)
		if f.Log == "log" {
			fences = append(fences, f)
		}
	}
	return rows, fences
}

func (w *randomWorld) wantOneClaimedFence() {
	for n := range int32(3) {
		rows, fences := w.rows(orders(n))
		claimed := slices.DeleteFunc(fences, func(f epoch.Fence) bool { return f.Epoch == 0 })
		if len(claimed) > 1 {
			w.Fatalf("%s has %d claimed fences:\n%s", orders(n), len(claimed), strings.Join(rows[:], "\n"))
		}
	}
}

func (w *randomWorld) wantBeginnings() {
	var first epoch.Offset // where the topic began for whoever came first
	for n := range int32(3) {
		rows, fences := w.rows(orders(n))
		said, decided := w.dbs[0].Fences()[orders(n)]
		for _, f := range fences {
			if !decided || f.Next != said.Next {
				w.Fatalf("%s begins where the first shard does not say:\n%s", orders(n), strings.Join(rows[:], "\n"))
			}
			if f.Next == earliest {
				continue
			}
			if first != 0 && f.Next != first {
				w.Fatalf("%s begins at %d, and another partition at %d: the topic was known to one of them", orders(n), f.Next, first)
			}
			first = f.Next
		}
	}
}

// wantClaimable: whoever routes as the first shard says, if it says anything, claims.
func (w *randomWorld) wantClaimable() {
	for n := range int32(3) {
		to := 0
		if row := w.dbs[0].Fences()[orders(n)]; row.Log != "log" && row.Log != "" {
			to, _ = strconv.Atoi(row.Log[strings.LastIndexByte(row.Log, ' ')+1:])
		}
		s, err := shardsink.New(toThe(to), epoch.Sink[*memsink.Tx](w.dbs[0]), w.dbs[1], w.dbs[2])
		if err == nil {
			_, err = claims(context.Background(), s, start(orders(n)))
		}
		if err != nil {
			rows, _ := w.rows(orders(n))
			w.Fatalf("%s is claimed by nobody: %v\n%s", orders(n), err, strings.Join(rows[:], "\n"))
		}
	}
}
