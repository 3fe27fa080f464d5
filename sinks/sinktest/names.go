package sinktest

import (
	"context"
	"math"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

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
