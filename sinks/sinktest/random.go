package sinktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

var random = []history{
	{"random histories: every answer and every effect is as epoch.Fences says", "R1 R2 R3 R9", againstModel},
	{"many processes at a time: each offset's effect is there once, in order, under epochs that never fall", "R1 R2 R4 R5", manyAtATime},
}

// groups makes group names unique among the plays of a database.
var groups atomic.Int64

func againstModel(w *world) {
	processes := []*process{w.process("A"), w.process("B"), w.process("C")}
	rapid.Check(w, func(t *rapid.T) {
		// Each check has its own timeout, because a hundred of them take long on a busy machine.
		ctx, cancel := context.WithTimeout(w.Context(), w.patience)
		defer cancel()
		group := fmt.Sprintf("random-%d", groups.Add(1))
		m := &model{t: t, w: w, ctx: ctx, group: group, fences: epoch.Fences{}, effects: map[epoch.Partition][]string{}, processes: processes}
		for n := range int32(3) {
			m.partitions = append(m.partitions, epoch.Partition{Group: group, Topic: "orders", Number: n})
		}
		t.Repeat(map[string]func(*rapid.T){
			"seed": m.seed, "claim": m.claim, "read and claim": m.takeOver, "commit": m.commit, "commit well": m.commitWell, "": m.check,
		})
		m.touched = m.partitions // for an action's effect on other partitions
		m.check(t)
	})
}

// model is one random history. It makes each call to the sink and to epoch.Fences.
type model struct {
	t          *rapid.T
	w          *world
	ctx        context.Context
	group      string
	partitions []epoch.Partition
	processes  []*process

	fences  epoch.Fences
	effects map[epoch.Partition][]string
	seen    []epoch.Fence     // every fence that was read
	held    []epoch.Fence     // every fence that a claim has returned
	touched []epoch.Partition // by the last action
}

func (m *model) process(t *rapid.T) *process {
	return rapid.SampledFrom(m.processes).Draw(t, "process")
}

func (m *model) partition(t *rapid.T) epoch.Partition {
	return rapid.SampledFrom(m.partitions).Draw(t, "partition")
}

// agree fails the history unless the sink refused like the model, with the same text if the
// protocol defines the text.
func (m *model) agree(t *rapid.T, what string, got, want error) {
	t.Helper()
	if (got == nil) != (want == nil) || !slices.Equal(class(got), class(want)) {
		t.Fatalf("%s: err = %v, want %v", what, got, want)
	}
	if gs, ws := (*epoch.StaleError)(nil), (*epoch.StaleError)(nil); errors.As(want, &ws) && (!errors.As(got, &gs) || *gs != *ws) {
		t.Fatalf("%s: err = %+v, want %+v", what, gs, ws)
	}
	if gm, wm := (*epoch.MovedError)(nil), (*epoch.MovedError)(nil); errors.As(want, &wm) && (!errors.As(got, &gm) || *gm != *wm) {
		t.Fatalf("%s: err = %+v, want %+v", what, gm, wm)
	}
	if gm, wm := (*epoch.MissingError)(nil), (*epoch.MissingError)(nil); errors.As(want, &wm) && (!errors.As(got, &gm) || *gm != *wm) {
		t.Fatalf("%s: err = %+v, want %+v", what, gm, wm)
	}
}

func (m *model) seed(t *rapid.T) {
	ps := rapid.SliceOfNDistinct(rapid.SampledFrom(m.partitions), 0, 3, rapid.ID).Draw(t, "partitions")
	var starts []epoch.Start
	for _, p := range ps {
		starts = append(starts, start(p, epoch.Offset(rapid.IntRange(10, 12).Draw(t, "next")), epoch.Offset(rapid.IntRange(0, 2).Draw(t, "earliest"))))
	}
	m.touched = ps
	m.agree(t, fmt.Sprintf("seed %v", ps), m.process(t).sink.Seed(m.ctx, starts), m.fences.Seed(starts))
}

func (m *model) swap(t *rapid.T, seen epoch.Fence, c epoch.Claim) {
	t.Helper()
	m.touched = []epoch.Partition{c.Partition}
	got, gotErr := m.process(t).sink.Claim(m.ctx, seen, c)
	want, wantErr := m.fences.Claim(seen, c)
	m.agree(t, "claim "+c.Partition.String(), gotErr, wantErr)
	if wantErr == nil {
		if got != want {
			t.Fatalf("claim %s: the fence is\n%+v, want\n%+v", c.Partition, got, want)
		}
		m.held = append(m.held, got)
	}
}

// claim swaps into any fence that was ever read.
func (m *model) claim(t *rapid.T) {
	if len(m.seen) == 0 {
		t.Skip("nobody has read a fence yet")
	}
	seen := rapid.SampledFrom(m.seen).Draw(t, "seen")
	m.swap(t, seen, epoch.NewClaim(lease(seen.Partition, rapid.Int64Range(1, 6).Draw(t, "generation"), "random")))
}

// takeOver reads a fence and swaps into it, sometimes with one wrong field.
func (m *model) takeOver(t *rapid.T) {
	p := m.partition(t)
	seen, gotErr := epoch.FenceOf(m.ctx, m.process(t).sink, p)
	_, wantErr := m.fences.Read(p)
	m.agree(t, "read "+p.String(), gotErr, wantErr)
	if wantErr != nil {
		return
	}
	m.seen = append(m.seen, seen)
	c := epoch.NewClaim(lease(p, rapid.Int64Range(1, 6).Draw(t, "generation"), "random"))
	switch rapid.IntRange(0, 11).Draw(t, "wrong") {
	case 0:
		c.Generation = -c.Generation
	case 1:
		c.Log = "another log"
	case 2:
		c.Source = "another source"
	case 3:
		c.ID = seen.Claim
	}
	if rapid.IntRange(0, 3).Draw(t, "adopts") == 0 {
		at := position(epoch.Offset(rapid.IntRange(-1, 20).Draw(t, "at")))
		c.Adopt = &at
	}
	m.swap(t, seen, c)
}

// commitWell advances partitions from their positions under their claims. Sometimes the handler
// fails.
func (m *model) commitWell(t *rapid.T) {
	var as []epoch.Advance
	for _, p := range m.partitions {
		if f, ok := m.fences[p]; ok && f.Epoch > 0 && rapid.Bool().Draw(t, "include") {
			as = append(as, (&tenure{Fence: f}).advance(rapid.IntRange(0, 3).Draw(t, "messages")))
		}
	}
	if len(as) == 0 {
		t.Skip("nothing is claimed")
	}
	var fails error
	if rapid.IntRange(0, 4).Draw(t, "handler fails") == 0 {
		fails = errors.New("handler failed")
	}
	m.transact(t, as, fails)
}

// commit advances partitions under any claims ever held, from any position.
func (m *model) commit(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nobody has claimed yet")
	}
	var as []epoch.Advance
	for _, f := range rapid.SliceOfNDistinct(rapid.SampledFrom(m.held), 1, 3, func(f epoch.Fence) epoch.Partition { return f.Partition }).Draw(t, "held") {
		if now := m.fences[f.Partition]; rapid.Bool().Draw(t, "from the right offset") {
			f.Next = now.Next
		}
		as = append(as, (&tenure{Fence: f}).advance(rapid.IntRange(0, 3).Draw(t, "messages")))
	}
	m.transact(t, as, nil)
}

func (m *model) transact(t *rapid.T, as []epoch.Advance, fails error) {
	t.Helper()
	m.touched = nil
	by := m.process(t)
	as = by.fit(as)
	for _, a := range as {
		m.touched = append(m.touched, a.Partition)
	}
	calls := 0
	value := fmt.Sprintf("transaction %d", groups.Add(1))
	got := by.sink.Commit(m.ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx any) error {
		calls++
		for _, a := range by.withEffects(as) {
			if err := m.w.db.Append(ctx, tx, a.Partition.String(), value); err != nil {
				return err
			}
		}
		return fails
	})
	if calls > 1 {
		t.Fatalf("apply was called %d times", calls)
	}
	if fails != nil {
		if !errors.Is(got, fails) {
			t.Fatalf("commit: err = %v, want the handler's", got)
		}
		return
	}
	want := m.fences.Advance(as)
	m.agree(t, fmt.Sprintf("commit %+v", as), got, want)
	if want == nil {
		for _, a := range by.withEffects(as) {
			m.effects[a.Partition] = append(m.effects[a.Partition], value)
		}
	}
}

func (m *model) check(t *rapid.T) {
	for _, p := range m.touched {
		got, gotErr := epoch.FenceOf(m.ctx, m.processes[0].sink, p)
		want, wantErr := m.fences.Read(p)
		m.agree(t, "read "+p.String(), gotErr, wantErr)
		if got != want {
			t.Fatalf("the fence is\n%+v, want\n%+v", got, want)
		}
		list, err := m.w.db.List(m.ctx, p.String())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(list, m.effects[p]) {
			t.Fatalf("effects of %s:\n%q, want\n%q", p, list, m.effects[p])
		}
	}
	m.touched = nil
}

// manyAtATime lets processes claim from each other at any time, under generations that repeat and
// fall, and commit. Each process stops once every partition is done.
func manyAtATime(w *world) {
	const each = 40 // messages of each partition
	ps := []epoch.Partition{orders0, orders1, orders2}
	w.seed(ps...)
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	w.together(4, func(n int, a *process) {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		held := map[epoch.Partition]*tenure{}
		for {
			through := true
			for _, p := range ps {
				f, err := epoch.FenceOf(w.ctx, a.sink, p)
				if errors.Is(err, epoch.ErrTransient) {
					through = false // see below
					continue
				}
				if err != nil {
					w.Errorf("read: %v", err)
					return
				}
				if f.Next == each {
					delete(held, p)
					continue
				}
				through = false
				if held[p] != nil || r.IntN(3) > 0 {
					continue
				}
				f, err = a.sink.Claim(w.ctx, f, epoch.NewClaim(lease(p, r.Int64N(9)+1, a.name)))
				switch {
				case err == nil:
					held[p] = &tenure{process: a, Fence: f}
				case errors.Is(err, epoch.ErrTransient) && len(class(err)) == 0:
					// A sink that ends the transaction of a replaced claim may come after its end,
					// and meet another user of its connection.
				case !w.isOnly(err, epoch.ErrStale, "claim"):
					return
				}
			}
			if through {
				return
			}
			if !a.commitSome(r, held, each) {
				return
			}
		}
	})
	for _, p := range ps {
		list, err := w.db.List(w.ctx, p.String())
		w.NoError(err)
		last := epoch.Epoch(0)
		for i, s := range list {
			var o epoch.Offset
			var e epoch.Epoch
			if _, err := fmt.Sscanf(s, "%d@%d", &o, &e); err != nil {
				w.Fatal(err)
			}
			w.Mustf(o == epoch.Offset(i) && e >= last, "%s: at place %d is the effect of offset %d under epoch %d, after epoch %d:\n%q", p, i, o, e, last, list)
			last = e
		}
		w.Wantf(len(list) == each, "%s: %d effects of %d messages", p, len(list), each)
	}
}

// commitSome commits a few messages of some held partitions in one transaction, and drops the
// partitions that it has lost. In doubt it drops all, and will claim again. It returns false after
// an answer that no sink may give.
func (a *process) commitSome(r *rand.Rand, held map[epoch.Partition]*tenure, end epoch.Offset) bool {
	var ts []*tenure
	var as []epoch.Advance
	for _, t := range held { // in any order
		if left := int(end - t.Next); left > 0 && r.IntN(3) > 0 {
			ts = append(ts, t)
			as = append(as, t.advance(1+r.IntN(min(3, left))))
		}
	}
	if len(as) == 0 {
		return true
	}
	w := a.w
	as = a.fit(as)
	err := a.sink.Commit(w.ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx any) error {
		for i, one := range as {
			if err := w.effects(ctx, tx, one, ts[i].Epoch); err != nil {
				return err
			}
		}
		return nil
	})
	var stale *epoch.StaleError
	switch {
	case err == nil:
		for i := range as {
			ts[i].moves(as[i])
		}
	case errors.As(err, &stale):
		delete(held, stale.Partition)
	case errors.Is(err, epoch.ErrInDoubt):
		clear(held)
	default:
		w.Errorf("commit %+v: %v", as, err)
		return false
	}
	return true
}
