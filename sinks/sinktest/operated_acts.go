package sinktest

import (
	"errors"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func ownerIsTold(w *world) {
	for i, c := range []struct {
		act  func(seen epoch.Fence) operate.Act
		next epoch.Offset
	}{
		{func(f epoch.Fence) operate.Act { return to(operate.ActRewind, f, 2) }, 2},
		{func(f epoch.Fence) operate.Act { return to(operate.ActRewind, f, 0) }, 0},
		{func(f epoch.Fence) operate.Act { return to(operate.ActSkip, f, 9) }, 9},
		{func(f epoch.Fence) operate.Act { return act(operate.ActEvict, f) }, 5},
	} {
		p := epoch.Partition{Group: "told", Topic: "orders", Number: int32(i)}
		w.seed(p)
		ta := w.process("A").claims(p, 5)
		ta.applies(5)
		a := c.act(ta.Fence)
		f := w.person().does(a)
		ta.refused(epoch.ErrStale, 1)
		again := ta.claims(p, 5)
		set := epoch.Epoch(0)
		if a.To != nil && a.Kind != operate.ActSkip {
			set = f.Epoch
		}
		if again.Next != c.next || again.Epoch != f.Epoch+1 || again.SetUnder != set {
			w.Errorf("%d: the owner that claims again is at\n%+v, after\n%+v", i, again.Fence, f)
		}
		again.applies(1)
		want := []string{effect(0, 5), effect(1, 5), effect(2, 5), effect(3, 5), effect(4, 5), effect(c.next, 7)}
		w.wantList(p.String(), want...)
	}
}

func actIsAClaim(w *world) {
	ta := w.owned(41)
	ta.applies(3)
	a := to(operate.ActRewind, ta.Fence, 1)
	a.Beginning = true
	f := w.person().does(a)
	if f.Epoch != 42 || f.Generation != 41 || f.Owner != "operator anna" || f.Claim != a.Claim || f.Next != 1 || f.Applied ||
		f.Mark != epoch.NoMark || f.SetUnder != 42 || f.Pause != (epoch.PauseState{}) {
		w.Errorf("after the act the fence is\n%+v", f)
	}
	found, err := w.person().op.Partition(w.ctx, orders0)
	w.Wantf(err == nil && operate.OperatorOf(found.Owner) == "anna", "the partition's claim is an operator's: %+v, %v", found, err)
	tb := w.process("A").claims(orders0, 41)
	w.Wantf(tb.Epoch == 43 && tb.Next == 1, "the claim after it is\n%+v", tb.Fence)
	if f = w.person().does(to(operate.ActRewind, w.person().sees(orders0), 7)); !f.Applied {
		w.Errorf("a position that an operator gave is not to be passed by retention: %+v", f)
	}
}

func actCompares(w *world) {
	h, ta := w.person(), w.owned(5)
	first := ta.Fence
	ta.applies(2)
	moved := ta.Fence
	tb := w.process("B").claims(orders0, 6)
	for name, c := range map[string]struct {
		act  operate.Act
		want error
	}{
		"a rewind seen before the last claim": {to(operate.ActRewind, moved, 1), epoch.ErrStale},
		"a pause seen before the last claim":  {act(operate.ActPause, moved), epoch.ErrStale},
		"one seen before it, at the position": {to(operate.ActRewind, first, 1), epoch.ErrStale},
	} {
		_, err := h.op.Act(w.ctx, c.act)
		w.wantOnly(err, c.want, "%s", name)
		tb.wantFence()
	}
	seen := tb.Fence
	tb.applies(1)
	for _, a := range []operate.Act{to(operate.ActRewind, seen, 0), to(operate.ActSkip, seen, 9)} {
		_, err := h.op.Act(w.ctx, a)
		w.wantOnly(err, epoch.ErrMoved, "%s seen before the last advance", a.Kind)
		m, ok := errors.AsType[*epoch.MovedError](err)
		w.Wantf(ok && *m == (epoch.MovedError{Partition: orders0, From: 2, Next: 3}), "the refusal is %#v", err)
		tb.wantFence()
	}
	again := act(operate.ActEvict, tb.Fence)
	again.Claim = tb.Claim
	if _, err := h.op.Act(w.ctx, again); err == nil {
		w.Error("an act under the claim that is there was done")
	}
	tb.wantFence()
	if f := h.does(act(operate.ActEvict, seen)); f.Next != 3 { // an eviction sets no position, so the position may have moved
		w.Errorf("evicted at %d", f.Next)
	}
	if _, err := h.op.Act(w.ctx, act(operate.ActEvict, epoch.Fence{Origin: origin(orders1)})); !errors.Is(err, epoch.ErrMissing) {
		w.Errorf("an act on a fence that is not there: %v", err)
	}
	for name, change := range map[string]func(*operate.Act){
		"nobody":          func(a *operate.Act) { a.By = " " },
		"no reason":       func(a *operate.Act) { a.Reason = "" },
		"several lines":   func(a *operate.Act) { a.Reason = "one\ntwo" },
		"a negative one":  func(a *operate.Act) { a.To = &epoch.Position{Offset: -1} },
		"no claim id":     func(a *operate.Act) { a.Claim = epoch.ClaimID{} },
		"no such act":     func(a *operate.Act) { a.Kind = "delete" },
		"no position":     func(a *operate.Act) { a.To = nil },
		"a log":           func(a *operate.Act) { a.Log = "another" },
		"another's fence": func(a *operate.Act) { a.Seen.Partition = orders1 },
	} {
		before := h.sees(orders0)
		a := to(operate.ActRewind, before, 1)
		change(&a)
		_, err := h.op.Act(w.ctx, a)
		w.Wantf(errors.Is(err, operate.ErrAct) && h.sees(orders0) == before, "%s: %v", name, err)
	}
}

func oneOfManyActs(w *world) {
	w.seed(orders0)
	w.process("A").claims(orders0, 1).applies(3)
	for round := range 5 {
		seen := w.person().sees(orders0)
		won := make(chan epoch.Fence, 6)
		w.together(6, func(n int, a *process) {
			var f epoch.Fence
			var err error
			if n%2 == 0 {
				f, err = w.db.Operator(w).Act(w.ctx, to(operate.ActRewind, seen, epoch.Offset(n)))
			} else {
				f, err = a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, int64(round+1), a.name)))
			}
			if err == nil {
				won <- f
				return
			}
			w.isOnly(err, epoch.ErrStale, "%d acts or claims", n)
		})
		w.Mustf(len(won) == 1, "round %d: %d acts and claims from one reading were accepted", round, len(won))
		if f, now := <-won, w.person().sees(orders0); f != now {
			w.Errorf("the one that was accepted returned\n%+v, and the fence is\n%+v", f, now)
		}
	}
}

func pausing(w *world) {
	h, ta := w.person(), w.owned(5)
	ta.applies(2)
	if _, err := h.op.Act(w.ctx, act(operate.ActResume, ta.Fence)); !errors.Is(err, operate.ErrNothingToDo) {
		w.Errorf("resumed what was not paused: %v", err)
	}
	paused := h.does(act(operate.ActPause, ta.Fence))
	ta.refused(epoch.ErrStale, 1)
	w.Wantf(!paused.Pause.Since.IsZero(), "the pause has no time")
	for range 2 {
		_, err := ta.sink.Claim(w.ctx, paused, epoch.NewClaim(lease(orders0, 6, "B")))
		var no *epoch.PausedError
		want := (epoch.PausedError{Partition: orders0, PauseState: paused.Pause})
		w.Mustf(errors.As(err, &no) && *no == want && errors.Is(err, epoch.ErrPaused), "a claim of a paused partition: %v", err)
		now := h.sees(orders0)
		w.Mustf(now == paused, "a refused claim left\n%+v, want\n%+v", now, paused)
	}
	if _, err := h.op.Act(w.ctx, act(operate.ActPause, paused)); !errors.Is(err, operate.ErrNothingToDo) {
		w.Errorf("paused twice: %v", err)
	}
	moved := h.does(to(operate.ActRewind, paused, 1))
	w.Wantf(moved.Pause == paused.Pause, "a rewind has changed the pause:\n%+v, want\n%+v", moved.Pause, paused.Pause)
	if _, err := ta.sink.Claim(w.ctx, moved, epoch.NewClaim(lease(orders0, 6, "B"))); !errors.Is(err, epoch.ErrPaused) {
		w.Errorf("a claim after a rewind of a paused partition: %v", err)
	}
	h.does(act(operate.ActResume, moved))
	tb := w.process("B").claims(orders0, 5)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 1@9")
}

func unclaimedActs(w *world) {
	w.seedAt(3, orders0)
	h := w.person()
	f := h.sees(orders0)
	for _, kind := range []operate.ActKind{operate.ActPause, operate.ActResume, operate.ActEvict} {
		_, err := h.op.Act(w.ctx, act(kind, f))
		w.Wantf(errors.Is(err, operate.ErrNothingToDo) && h.sees(orders0) == f, "%s of a fence that was never claimed: %v", kind, err)
	}
	f = h.does(to(operate.ActRewind, f, 10))
	w.Wantf(f.Epoch == 1 && f.Next == 10, "the fence is\n%+v", f)
	c := epoch.NewClaim(lease(orders0, 5, "A"))
	c.Adopt = &epoch.Position{Offset: 99, Mark: epoch.NoMark}
	if got, err := w.process("A").sink.Claim(w.ctx, f, c); err == nil {
		w.Errorf("a claim took the place of an operator's position with one that it adopts: %+v", got)
	}
	ds := h.history(operate.HistoryQuery{Partition: &orders0})
	w.Wantf(len(ds) == 1 && ds[0].From == -1 && ds[0].To == 10, "the log says %+v", ds)
}

func redirectRowsAreLeftAlone(w *world) {
	o := origin(orders0)
	o.Log = operate.RedirectLog + "3"
	at := epoch.Position{Mark: epoch.NoMark}
	w.NoErrorf(w.process("A").sink.Seed(w.ctx, []epoch.Start{{Origin: o, Next: at, Earliest: at}}), "seed")
	h := w.person()
	f := h.sees(orders0)
	rebase := to(operate.ActRebase, f, 5)
	rebase.Log = "cluster-1/topic-1"
	for _, a := range []operate.Act{to(operate.ActRewind, f, 5), act(operate.ActPause, f), rebase} {
		_, err := h.op.Act(w.ctx, a)
		w.Wantf(errors.Is(err, epoch.ErrElsewhere) && strings.Contains(err.Error(), "in shard 3") && h.sees(orders0) == f, "%s: %v", a.Kind, err)
	}
}

func rebasing(w *world) {
	h, ta := w.person(), w.owned(5)
	ta.applies(4)
	a := act(operate.ActRebase, ta.Fence)
	a.Log = "cluster-1/topic-2"
	if _, err := h.op.Act(w.ctx, a); !errors.Is(err, operate.ErrAct) {
		w.Errorf("another log without a position: %v", err)
	}
	a.To = &epoch.Position{Offset: 1, Mark: epoch.NoMark}
	f := h.does(a)
	w.Wantf(f.Log == a.Log && f.Source == "cluster-1" && f.Next == 1, "the fence is\n%+v", f)
	_, err := ta.sink.Claim(w.ctx, f, epoch.NewClaim(lease(orders0, 6, "A")))
	w.wantOnly(err, epoch.ErrLogChanged, "a claim of the log that was")
	known, added := start(orders0, 100, 7), start(orders1, 100, 7)
	known.Log = a.Log
	w.process("A").seeds(known, added)
	w.process("A").wantStart(orders1, 7)
	l := lease(orders0, 6, "B")
	l.Log = a.Log
	w.process("B").swaps(f, l).applies(1)

	b := act(operate.ActRebase, h.sees(orders0))
	b.Source = "cluster-2"
	if f = h.does(b); f.Next != 2 || f.Log != a.Log || f.Source != "cluster-2" {
		w.Errorf("the fence is\n%+v", f)
	}
	_, err = ta.sink.Claim(w.ctx, f, epoch.NewClaim(l))
	w.wantOnly(err, epoch.ErrForeignLease, "a claim from the lease source that was")
}

func sameAnswer(got, want error) bool {
	for _, is := range append(slices.Clone(refusals), epoch.ErrPaused, operate.ErrNothingToDo, operate.ErrAct) {
		if errors.Is(got, is) != errors.Is(want, is) {
			return false
		}
	}
	return (got == nil) == (want == nil)
}

func actsAreCounted(w *world) {
	w.seed(orders0)
	h, a := w.person(), w.process("A")
	a.claims(orders0, 5)
	before := a.acts(orders0)
	a.claims(orders0, 6).applies(1)
	w.Wantf(a.acts(orders0) == before, "a claim counts as an act")
	h.does(act(operate.ActEvict, h.sees(orders0)))
	w.Wantf(a.acts(orders0) != before, "an act does not count")
}
