package sinktest

import (
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func (t *tenure) recordsHangs(kind operate.DecisionKind, from, to epoch.Offset, times int) {
	t.w.Helper()
	d := operate.Decision{Kind: kind, Partition: t.Partition, Epoch: t.Epoch, Claim: t.Claim, Owner: t.Owner, From: from, To: to, Reason: "it waits"}
	if err := t.operable().Record(t.w.ctx, slices.Repeat([]operate.Decision{d}, times)); err != nil {
		t.w.Fatalf("record a hang: %v", err)
	}
}

func (a *process) wantHangs(p epoch.Partition, want ...string) {
	a.w.Helper()
	ds, err := a.operable().Hangs(a.w.ctx, p)
	if err != nil {
		a.w.Fatalf("read what hung: %v", err)
	}
	var got []string
	for i, d := range ds {
		got = append(got, fmt.Sprintf("%s %d>%d %s", d.Kind, d.From, d.To, d.Owner))
		if d.Partition != p || d.Reason != "it waits" || d.Epoch == 0 || d.Claim == (epoch.ClaimID{}) || i > 0 && d.ID >= ds[i-1].ID {
			a.w.Errorf("%+v", d)
		}
	}
	if !slices.Equal(got, want) {
		a.w.Errorf("on %s hung %q, want %q", p, got, want)
	}
}

func hanging(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	b := w.process("B")
	b.wantHangs(orders0)
	ta, other := w.process("A").claims(orders0, 5), w.process("A").claims(orders1, 5)
	ta.recordsHangs(operate.DecidedHang, 3, 9, 1)
	other.recordsHangs(operate.DecidedHang, 7, 8, 1)
	ta.recordsHangs(operate.DecidedOnFailureHang, 3, 4, 1)
	ta.recordsHangs(operate.DecidedHang, -1, -1, 1)
	ta.recordsHangs(operate.DecidedHalt, 3, 3, 1)
	ta.recordsHangs(operate.DecidedLoss, 3, 3, 1)
	want := []string{"hang -1>-1 A", "on-failure-hang 3>4 A", "hang 3>9 A"}
	b.wantHangs(orders0, want...)
	b.wantHangs(orders1, "hang 7>8 A")

	// What an operator does with the owner, or another owner's hangs, changes nothing.
	h.does(act(operate.ActEvict, h.sees(orders0)))
	h.does(act(operate.ActPause, h.sees(orders0)))
	b.wantHangs(orders0, want...)

	for i, letsContinue := range []func(seen epoch.Fence) operate.Act{
		func(seen epoch.Fence) operate.Act { return act(operate.ActResume, seen) },
		func(seen epoch.Fence) operate.Act { return to(operate.ActSkip, seen, seen.Next+1) },
		func(seen epoch.Fence) operate.Act { return to(operate.ActRewind, seen, seen.Next) },
		func(seen epoch.Fence) operate.Act {
			a := to(operate.ActRebase, seen, seen.Next)
			a.Log = "recreated"
			return a
		},
	} {
		h.does(letsContinue(h.sees(orders0)))
		b.wantHangs(orders0)
		if i == 3 {
			break
		}
		tb := b.claims(orders0, 6)
		tb.recordsHangs(operate.DecidedHang, 5, 6, 1)
		b.wantHangs(orders0, "hang 5>6 B")
	}
	b.wantHangs(orders1, "hang 7>8 A")
}

func hangingOften(w *world) {
	w.seed(orders0)
	ta := w.process("A").claims(orders0, 5)
	ta.recordsHangs(operate.DecidedHang, 1, 2, 1)
	ta.recordsHangs(operate.DecidedHang, 2, 3, operate.MaxHangs)
	ta.wantHangs(orders0, slices.Repeat([]string{"hang 2>3 A"}, operate.MaxHangs)...)

	// Concurrent callers each get their own partition's hangs.
	w.together(8, func(i int, a *process) {
		p := []epoch.Partition{orders0, orders1}[i%2]
		ds, err := a.operable().Hangs(w.ctx, p)
		if want := []int{operate.MaxHangs, 0}[i%2]; err != nil || len(ds) != want {
			w.Errorf("of %s %d hangs are told, want %d: %v", p, len(ds), want, err)
		}
	})
}
