package sinktest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func (h *person) history(q operate.HistoryQuery) []operate.Decision {
	h.w.Helper()
	ds, err := h.op.History(h.w.ctx, q)
	h.w.NoErrorf(err, "the audit log")
	return ds
}

func told(d operate.Decision) string {
	s := fmt.Sprintf("%s %d %d>%d", d.Kind, d.Epoch, d.From, d.To)
	if d.By != "" {
		s += " " + d.By
	}
	if d.Reason != "" {
		s += ": " + d.Reason
	}
	return s
}

// wantLog compares the newest decisions of p, oldest first.
func (h *person) wantLog(p epoch.Partition, want ...string) []operate.Decision {
	h.w.Helper()
	ds := h.history(operate.HistoryQuery{Partition: &p})
	slices.Reverse(ds)
	var got []string
	for _, d := range ds {
		got = append(got, told(d))
	}
	h.w.Wantf(slices.Equal(got, want), "the audit log of %s says\n%s\nwant\n%s", p, strings.Join(got, "\n"), strings.Join(want, "\n"))
	return ds
}

func decisionsAreLogged(w *world) {
	w.seedAt(3, orders0, orders1)
	h, a := w.person(), w.process("A")
	adopts := epoch.NewClaim(lease(orders0, 5, "A"))
	adopts.Adopt = &epoch.Position{Offset: 10, Mark: epoch.NoMark}
	f, err := a.sink.Claim(operate.WithTraceID(w.ctx, "4bf92f3577b34da6"), a.reads(orders0), adopts)
	w.NoErrorf(err, "claim")
	ta := &tenure{process: a, Fence: f}
	ta.applies(2)
	ta.applies(0)
	if _, err := a.sink.Claim(w.ctx, epoch.Fence{Origin: f.Origin}, epoch.NewClaim(lease(orders0, 9, "B"))); err == nil {
		w.Fatalf("a stale claim was accepted")
	}
	tb := w.process("B").claims(orders0, 6)
	rewind := to(operate.ActRewind, tb.Fence, 4)
	rewind.TraceID = "00f067aa0ba902b7"
	h.does(rewind)
	if _, err := h.op.Act(w.ctx, to(operate.ActRewind, tb.Fence, 3)); err == nil {
		w.Fatalf("a stale act was done")
	}
	ta.refused(epoch.ErrStale, 1)
	ds := h.wantLog(orders0, "claim 5 -1>10", "claim 6 12>12", "rewind 7 12>4 anna: for the test")
	if ds[0].TraceID != "4bf92f3577b34da6" || ds[2].TraceID != rewind.TraceID || ds[0].Claim != f.Claim || ds[0].Owner != "A" ||
		ds[2].Claim != rewind.Claim || ds[2].Owner != "operator anna" {
		w.Errorf("the decisions are %+v", ds)
	}
	for i, d := range ds {
		w.Wantf(!d.At.IsZero() && d.Partition == orders0 && (i <= 0 || d.ID > ds[i-1].ID), "decision %d is %+v", i, d)
	}
	h.wantLog(orders1)
}

func (a *process) records() *operate.Records[any] { return operate.RecordsIn(a.ledger()) }

func (a *process) ledger() operate.Ledger[any] {
	a.w.Helper()
	if e, ok := a.sink.(interface {
		ledger() (operate.Ledger[any], bool)
	}); ok {
		if l, ok := e.ledger(); ok {
			return l
		}
	}
	a.w.Fatalf("the sink is no operate.Ledger")
	return nil
}

func recording(w *world) {
	w.seed(orders0)
	a := w.process("A")
	f := a.claims(orders0, 5)
	var ds []operate.Decision
	for i, kind := range []operate.DecisionKind{
		operate.DecidedStale, operate.DecidedHalt, operate.DecidedRecovery, operate.DecidedLoss, operate.DecidedInDoubt, operate.DecidedHang, operate.DecidedOnFailureHang, operate.DecidedTick, operate.DecidedSuspected,
	} {
		ds = append(ds, operate.Decision{
			Kind: kind, Partition: orders0, Epoch: f.Epoch, Claim: f.Claim, Owner: "A",
			From: epoch.Offset(i), To: -1, Reason: fmt.Sprintf("reason \x00\xff %d", i), By: "forged", TraceID: "t",
		})
	}
	ds[1].Owner = epoch.ReservedOwner + "forged"
	w.NoErrorf(a.records().Record(w.ctx, ds), "record")
	ds[1].Owner = "" // a consumer may not write in an operator's name
	log := w.person().history(operate.HistoryQuery{Partition: &orders0})
	if len(log) != len(ds)+1 { // and the claim
		w.Fatalf("the log has %d entries: %+v", len(log), log)
	}
	slices.Reverse(log)
	for i, d := range log[1:] {
		if d.Kind != ds[i].Kind || d.From != epoch.Offset(i) || d.To != -1 || d.By != "" || d.Owner != ds[i].Owner || d.Claim != f.Claim || d.Epoch != 5 ||
			d.TraceID != "t" || !strings.HasSuffix(d.Reason, strconv.Itoa(i)) {
			w.Errorf("entry %d is %+v", i, d)
		}
	}
	for _, kind := range []operate.DecisionKind{operate.DecidedClaim, operate.DecidedRewind, operate.DecidedDiscard, "anything"} {
		ds[0].Kind = kind
		err := a.records().Record(w.ctx, ds[:1])
		w.Wantf(err != nil, "a consumer recorded %s", kind)
	}
	if err := a.records().Record(w.ctx, nil); err != nil {
		w.Errorf("nothing was recorded: %v", err)
	}
}

func readingTheLog(w *world) {
	w.seed(orders0, orders1)
	a, h := w.process("A"), w.person()
	var claims []epoch.ClaimID
	for range 5 {
		claims = append(claims, a.claims(orders0, 1).Claim)
		a.claims(orders1, 1)
	}
	h.does(act(operate.ActEvict, h.sees(orders0)))
	count := func(want int, q operate.HistoryQuery) []operate.Decision {
		w.Helper()
		ds := h.history(q)
		w.Wantf(len(ds) == want, "%+v selects %d entries, want %d: %+v", q, len(ds), want, ds)
		return ds
	}
	count(11, operate.HistoryQuery{})
	count(6, operate.HistoryQuery{Partition: &orders0})
	count(1, operate.HistoryQuery{Claim: claims[2]})
	count(10, operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedClaim}})
	count(11, operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedClaim, operate.DecidedEvict}})
	count(0, operate.HistoryQuery{Until: time.Now().Add(-time.Hour)})
	count(11, operate.HistoryQuery{Until: time.Now().Add(time.Hour)})
	page := count(4, operate.HistoryQuery{Partition: &orders0, Limit: 4})
	if rest := count(2, operate.HistoryQuery{Partition: &orders0, Before: page[3].ID, Limit: 4}); rest[1].Claim != claims[0] {
		w.Errorf("the oldest is %+v", rest[1])
	}
}

func listing(w *world) {
	other := epoch.Partition{Group: "other", Topic: "orders", Number: 7}
	payments := epoch.Partition{Group: "billing", Topic: "payments"}
	w.seed(orders0, orders1)
	w.seed(other)
	w.seed(payments)
	h := w.person()
	ta := w.process("A").claims(orders1, 5)
	ta.buries(2)
	h.does(act(operate.ActPause, h.sees(orders1)))
	for _, c := range []struct {
		filter operate.Filter
		want   []epoch.Partition
	}{
		{operate.Filter{}, []epoch.Partition{orders0, orders1, payments, other}},
		{operate.Filter{Group: "billing"}, []epoch.Partition{orders0, orders1, payments}},
		{operate.Filter{Topic: "orders"}, []epoch.Partition{orders0, orders1, other}},
		{operate.Filter{Group: "billing", Topic: "payments"}, []epoch.Partition{payments}},
		{operate.Filter{Paused: true}, []epoch.Partition{orders1}},
		{operate.Filter{Group: "nobody"}, nil},
	} {
		found, err := h.op.Partitions(w.ctx, c.filter)
		w.NoErrorf(err, "list")
		var got []epoch.Partition
		for _, f := range found {
			got = append(got, f.Fence.Partition)
			letters := map[epoch.Partition]int64{orders1: 2}[f.Fence.Partition]
			if f.DeadLetters != letters || f.Now.IsZero() || f.ClaimedAt.IsZero() != (f.Epoch == 0) || f.AdvancedAt.IsZero() != (letters == 0) || f.Fence != w.process("B").reads(f.Fence.Partition) {
				w.Errorf("%+v", f)
			}
		}
		w.Wantf(slices.Equal(got, c.want), "%+v selects %v, want %v", c.filter, got, c.want)
	}
	if _, err := h.op.Partition(w.ctx, orders2); !errors.Is(err, epoch.ErrMissing) {
		w.Errorf("a fence that is not there: %v", err)
	}
}

func (t *tenure) recordsHangs(kind operate.DecisionKind, from, to epoch.Offset, times int) {
	t.w.Helper()
	d := operate.Decision{Kind: kind, Partition: t.Partition, Epoch: t.Epoch, Claim: t.Claim, Owner: t.Owner, From: from, To: to, Reason: "it waits"}
	t.w.NoErrorf(t.records().Record(t.w.ctx, slices.Repeat([]operate.Decision{d}, times)), "record a hang")
}

func (a *process) wantHangs(p epoch.Partition, want ...string) {
	a.w.Helper()
	ds, err := a.records().Hangs(a.w.ctx, p)
	a.w.NoErrorf(err, "read what hung")
	var got []string
	for i, d := range ds {
		got = append(got, fmt.Sprintf("%s %d>%d %s", d.Kind, d.From, d.To, d.Owner))
		a.w.Wantf(d.Partition == p && d.Reason == "it waits" && d.Epoch != 0 && d.Claim != (epoch.ClaimID{}) && (i <= 0 || d.ID < ds[i-1].ID), "%+v", d)
	}
	a.w.Wantf(slices.Equal(got, want), "on %s hung %q, want %q", p, got, want)
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
	ta := w.owned(5)
	ta.recordsHangs(operate.DecidedHang, 1, 2, 1)
	ta.recordsHangs(operate.DecidedHang, 2, 3, operate.MaxHangs)
	ta.wantHangs(orders0, slices.Repeat([]string{"hang 2>3 A"}, operate.MaxHangs)...)

	// Concurrent callers each get their own partition's hangs.
	w.together(8, func(i int, a *process) {
		p := []epoch.Partition{orders0, orders1}[i%2]
		ds, err := a.records().Hangs(w.ctx, p)
		want := []int{operate.MaxHangs, 0}[i%2]
		w.Wantf(err == nil && len(ds) == want, "of %s %d hangs are told, want %d: %v", p, len(ds), want, err)
	})
}
