package sinktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

var seeds = []history{
	{"a topic that the group does not know begins at the policy's offset", "R9", seedUnknown},
	{"a new partition of a known topic begins at the earliest message", "R9", seedKnown},
	{"topics and groups are known by themselves alone", "R9", seedOthers},
	{"seeding leaves a fence that exists as it is", "R9", seedExisting},
	{"no partition is added while another of the topic is of another log than its start", "R9", seedOtherLog},
	{"fences of two topics or groups are not seeded together", "R9", seedMixed},
	{"seeding nothing is nothing", "R9", seedNothing},
	{"of concurrent seedings of the same partitions, one decides them all", "R9", seedSame},
	{"of concurrent seedings of different partitions, one begins at the policy's offset, the others at the earliest", "R9", seedDifferent},
}

func start(p epoch.Partition, next, earliest epoch.Offset) epoch.Start {
	return epoch.Start{Origin: origin(p), Next: position(next), Earliest: position(earliest)}
}

func position(o epoch.Offset) epoch.Position {
	return epoch.Position{Offset: o, Mark: epoch.Mark(o) + 1000}
}

func (a *process) seeds(starts ...epoch.Start) {
	a.w.Helper()
	a.w.NoErrorf(a.sink.Seed(a.w.ctx, starts), "%s seeds %+v", a.name, starts)
}

func (a *process) wantStart(p epoch.Partition, next epoch.Offset) {
	a.w.Helper()
	want := epoch.Fence{Origin: origin(p), Next: next, Mark: position(next).Mark}
	f := a.reads(p)
	a.w.Mustf(f == want, "the seeded fence is\n%+v, want\n%+v", f, want)
}

func seedUnknown(w *world) {
	a := w.process("A")
	a.seeds(start(orders0, 100, 7), start(orders1, 200, 8))
	a.wantStart(orders0, 100)
	a.wantStart(orders1, 200)
}

func seedKnown(w *world) {
	a := w.process("A")
	a.seeds(start(orders0, 100, 7))
	a.seeds(start(orders0, 100, 7), start(orders1, 200, 8), start(orders2, 300, 9))
	a.wantStart(orders0, 100)
	a.wantStart(orders1, 8)
	a.wantStart(orders2, 9)
}

func seedOthers(w *world) {
	a := w.process("A")
	payments := epoch.Partition{Group: orders0.Group, Topic: "payments", Number: 0}
	shipping := epoch.Partition{Group: "shipping", Topic: orders0.Topic, Number: 0}
	a.seeds(start(orders0, 100, 7))
	a.seeds(start(payments, 200, 8))
	a.seeds(start(shipping, 300, 9))
	a.wantStart(payments, 200)
	a.wantStart(shipping, 300)
}

func seedExisting(w *world) {
	ta := w.owned(5)
	ta.applies(3)
	other := start(orders0, 100, 50)
	other.Log, other.Source = "another log", "another source"
	w.process("B").seeds(other)
	ta.wantFence()
	ta.applies(1)
}

func seedOtherLog(w *world) {
	a := w.process("A")
	a.seeds(start(orders0, 100, 7), start(orders1, 100, 7))
	changed := start(orders1, 0, 0)
	changed.Log = "cluster-1/topic-2"
	err := a.sink.Seed(w.ctx, []epoch.Start{start(orders0, 0, 0), changed, start(orders2, 0, 0)})
	w.wantOnly(err, epoch.ErrLogChanged, "a third partition is added")
	var of *epoch.LogChangedError
	want := epoch.LogChangedError{Partition: orders1, Fence: "cluster-1/topic-1", Source: changed.Log, Next: 100}
	w.Wantf(errors.As(err, &of) && *of == want, "the refusal is %#v; want %#v", of, want)
	_, err = epoch.FenceOf(w.ctx, a.sink, orders2)
	w.wantOnly(err, epoch.ErrMissing, "read the third partition")
	a.wantStart(orders1, 100)
}

func seedMixed(w *world) {
	a := w.process("A")
	for name, p := range map[string]epoch.Partition{
		"topics": {Group: orders0.Group, Topic: "payments"},
		"groups": {Group: "shipping", Topic: orders0.Topic},
	} {
		if err := a.sink.Seed(w.ctx, []epoch.Start{start(orders0, 0, 0), start(p, 0, 0)}); err == nil {
			w.Errorf("two %s were seeded together", name)
		}
		for _, p := range []epoch.Partition{orders0, p} {
			_, err := epoch.FenceOf(w.ctx, a.sink, p)
			w.wantOnly(err, epoch.ErrMissing, "read %s after a refused seeding", p)
		}
	}
}

func seedNothing(w *world) {
	w.process("A").seeds()
}

func seedSame(w *world) {
	for round := range 5 {
		ps := [3]epoch.Partition{}
		for i := range ps {
			ps[i] = epoch.Partition{Group: fmt.Sprintf("group-%d", round), Topic: "orders", Number: int32(i)}
		}
		w.together(4, func(n int, a *process) {
			var starts []epoch.Start
			for i := range ps {
				// Each process has a different order of partitions.
				starts = append(starts, start(ps[(i+n)%len(ps)], epoch.Offset(100+n), epoch.Offset(200+n)))
			}
			err := a.sink.Seed(w.ctx, starts)
			w.Wantf(err == nil, "process %d seeds: %v", n, err)
		})
		reader := w.process("reader")
		first := reader.reads(ps[0]).Next
		if first < 100 || first >= 104 {
			w.Errorf("round %d: %s begins at %d, want 100 to 103", round, ps[0], first)
		}
		for _, p := range ps[1:] {
			if next := reader.reads(p).Next; next != first {
				w.Errorf("round %d: %s begins at %d and %s at %d: two seedings were mixed", round, ps[0], first, p, next)
			}
		}
	}
}

func seedDifferent(w *world) {
	for round := range 5 {
		group := fmt.Sprintf("group-%d", round)
		w.together(4, func(n int, a *process) {
			p := epoch.Partition{Group: group, Topic: "orders", Number: int32(n)}
			err := a.sink.Seed(w.ctx, []epoch.Start{start(p, 100, 7)})
			w.Wantf(err == nil, "process %d seeds: %v", n, err)
		})
		reader, firsts := w.process("reader"), 0
		for n := range 4 {
			switch f := reader.reads(epoch.Partition{Group: group, Topic: "orders", Number: int32(n)}); f.Next {
			case 100:
				firsts++
			case 7:
			default:
				w.Errorf("round %d: %s begins at %d, want 100 or 7", round, f.Partition, f.Next)
			}
		}
		w.Wantf(firsts == 1, "round %d: %d seedings found that they were first", round, firsts)
	}
}

var names = []history{
	{"names with quotes, spaces, other scripts and 249 characters are names like others", "R9", oddNames},
	{"names that differ at all are different", "R9", closeNames},
	{"a name that the database cannot hold is refused, never changed", "R9", unstorableNames},
	{"offsets and partition numbers reach to the end of their range", "R1", farOffsets},
}

// playOut makes a and then b own p, and returns a check of the outcome.
func playOut(a, b *process, p epoch.Partition, generation int64) (check func()) {
	w := a.w
	w.Helper()
	a.seeds(start(p, 0, 0))
	ta := a.claims(p, generation)
	ta.applies(1)
	tb := b.claims(p, generation+1)
	ta.refused(epoch.ErrStale, 1)
	tb.applies(1)
	return func() {
		w.Helper()
		tb.wantFence()
		w.wantList(p.String(), effect(0, ta.Epoch), effect(1, tb.Epoch))
	}
}

func oddNames(w *world) {
	a, b := w.process("A"), w.process("B")
	var checks []func()
	for i, name := range []string{
		"",
		" ",
		"it's",
		`say "when"`,
		"back`tick",
		`back\slash`,
		"per%cent_and?mark",
		"semi;colon -- comment /* too */",
		"new\nline\ttab",
		"$1 :name @name {brace}",
		"Größe/数量/कार्य/🧾",
		"e\u0301 is not \u00e9",
		strings.Repeat("x", 249),
		strings.Repeat("数", 249),
	} {
		checks = append(checks,
			playOut(a, b, epoch.Partition{Group: name, Topic: "orders"}, int64(3*i+1)),
			playOut(a, b, epoch.Partition{Group: "billing", Topic: name}, int64(3*i+1)))
	}
	for _, check := range checks {
		check()
	}
	// And in what a lease says of itself.
	w.seed(orders0)
	l := lease(orders0, 5, `O'Neil "数" \ %`)
	ta := a.swaps(a.reads(orders0), l)
	ta.wantFence()
}

func closeNames(w *world) {
	a, b := w.process("A"), w.process("B")
	var checks []func()
	for i, name := range []string{
		"orders", "Orders", "orders ", " orders", "order's", "orders\t",
		"\u00e9", "e\u0301", "e", "ß", "ss", "K", "\u212a",
	} {
		checks = append(checks, playOut(a, b, epoch.Partition{Group: "g", Topic: name}, int64(10*i+1)))
	}
	// The boundary between group and topic is part of the name.
	checks = append(checks,
		playOut(a, b, epoch.Partition{Group: "a/b", Topic: "c"}, 1),
		playOut(a, b, epoch.Partition{Group: "a", Topic: "b/c"}, 11),
		playOut(a, b, epoch.Partition{Group: "", Topic: "a/b/c"}, 21))
	for _, check := range checks {
		check()
	}
}

func unstorableNames(w *world) {
	a := w.process("A")
	for _, name := range []string{"nul\x00inside", "not utf-8 \xff\xfe"} {
		p := epoch.Partition{Group: name, Topic: "orders"}
		if err := a.sink.Seed(w.ctx, []epoch.Start{start(p, 3, 3)}); err != nil {
			w.Logf("%q is refused: %v", name, err)
			continue
		}
		a.wantStart(p, 3)
		ta := a.claims(p, 5)
		ta.applies(0)
		ta.wantFence()
	}
	// What is refused does no harm.
	playOut(a, w.process("B"), orders0, 1)()
}

func farOffsets(w *world) {
	far := epoch.Partition{Group: "billing", Topic: "orders", Number: math.MaxInt32}
	w.seedAt(math.MaxInt64-3, far)
	ta := w.process("A").claims(far, 5)
	ta.applies(2)
	ta.applies(1)
	w.Mustf(ta.Next == math.MaxInt64, "the history itself is wrong: at %d", ta.Next)
	ta.wantFence()
	ta.applies(0)
	near := *ta
	near.Next = -1
	near.refused(epoch.ErrMoved, 1)
	jump := ta.advance(0)
	jump.From = 0
	err := ta.commit([]epoch.Advance{jump}, func(context.Context, any) error { return nil })
	w.wantOnly(err, epoch.ErrMoved, "A jumps from 0 to %d", jump.To)
	w.wantEffects(far, "9223372036854775804-9223372036854775806@5")

	// A whole range of the log in one step, as after a compacted stretch.
	w.seed(orders0)
	tb := w.process("B").claims(orders0, 5)
	all := tb.advance(0)
	all.To = math.MaxInt64
	w.NoError(tb.commit([]epoch.Advance{all}, func(context.Context, any) error { return nil }))
	tb.moves(all)
	tb.wantFence()
}
