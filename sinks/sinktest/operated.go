package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/ops/operate"
)

// operated are the histories in which people act while consumers are at work.
var operated = []history{
	{"a live owner is fenced by an act, claims again, and goes on from where it was told", "R1 R6 R8", ownerIsTold},
	{"an act takes the next epoch, keeps the lease's generation, and names the person", "R1", actIsAClaim},
	{"an act compares what was seen: the epoch and the claim, and the position where it sets one", "R2", actCompares},
	{"of many acts from one reading, one is done", "R2", oneOfManyActs},
	{"a paused partition takes no claim, says who has paused it and why, and goes on once it is resumed", "R2", pausing},
	{"a fence that was never claimed takes a position, and nothing else", "R8", unclaimedActs},
	{"what only says that a partition is in another database is left alone", "R1", signpostsAreLeftAlone},
	{"another log and another lease source are accepted with a position", "R2 R10", rebasing},
	{"acts at random: every answer is as epoch.Fences says", "R1 R2", actsAgainstModel},
	{"acts beside claimers and committers: under each claim exactly the messages of its span are applied, as the decision log tells it", "R1 R2 R5", actsRaced},
	{"each claim and each act is in the decision log, and nothing that was refused or committed", "R1", decisionsAreLogged},
	{"what consumers record is in the decision log, and they record no acts", "R1", recording},
	{"the decision log is read by partition, claim, kind and page", "R1", readingTheLog},
	{"fences are listed by group and topic, with their dead letters", "R1", listing},
	{"a dead letter is shown whole, and listed without its content", "R1", showingDeadLetters},
	{"a replay that is requested takes the dead letter away with its effects, or neither", "R1 R6", replaying},
	{"a replay that was withdrawn, carried out or discarded meanwhile is not committed", "R1", replayedOnce},
	{"a replay that fails stays a dead letter, with the reason", "R1", replayFails},
	{"what is done to a dead letter compares its requests", "R2", deadLetterCompares},
	{"a number changes with each act, for whoever looks after fences", "R5", actsAreCounted},
}

// person operates the database of a world.
type person struct {
	w  *world
	op operate.Operator
}

func (w *world) person() *person {
	w.Helper()
	return &person{w, w.db.Operator(w)}
}

func (h *person) sees(p epoch.Partition) epoch.Fence {
	h.w.Helper()
	found, err := h.op.Partition(h.w.ctx, p)
	if err != nil {
		h.w.Fatalf("read %s: %v", p, err)
	}
	return found.Fence
}

func act(kind epoch.ActKind, seen epoch.Fence) epoch.Act {
	return epoch.NewAct(kind, seen, "anna", "for the test")
}

// to is an act that sets the position.
func to(kind epoch.ActKind, seen epoch.Fence, at epoch.Offset) epoch.Act {
	a := act(kind, seen)
	a.To = &epoch.Position{Offset: at, Mark: epoch.NoMark}
	return a
}

// does has a done, which must succeed, and be as the protocol says.
func (h *person) does(a epoch.Act) epoch.Fence {
	h.w.Helper()
	before := h.sees(a.Partition)
	f, err := h.op.Act(h.w.ctx, a)
	if err != nil {
		h.w.Fatalf("%s %s: %v", a.Kind, a.Partition, err)
	}
	want, err := before.Operated(a)
	if err != nil {
		h.w.Fatalf("the history itself is wrong: %v", err)
	}
	if timeless(f) != timeless(want) {
		h.w.Fatalf("%s %s: the fence is\n%+v, want\n%+v", a.Kind, a.Partition, f, want)
	}
	if now := h.sees(a.Partition); now != f {
		h.w.Fatalf("%s %s returned\n%+v, and the fence is\n%+v", a.Kind, a.Partition, f, now)
	}
	return f
}

// timeless is a fence without the time that its database has given it.
func timeless(f epoch.Fence) epoch.Fence {
	f.Standing.Since = time.Time{}
	return f
}

func ownerIsTold(w *world) {
	for i, c := range []struct {
		act  func(seen epoch.Fence) epoch.Act
		next epoch.Offset
	}{
		{func(f epoch.Fence) epoch.Act { return to(epoch.ActRewind, f, 2) }, 2},
		{func(f epoch.Fence) epoch.Act { return to(epoch.ActRewind, f, 0) }, 0},
		{func(f epoch.Fence) epoch.Act { return to(epoch.ActSkip, f, 9) }, 9},
		{func(f epoch.Fence) epoch.Act { return act(epoch.ActEvict, f) }, 5},
	} {
		p := epoch.Partition{Group: "told", Topic: "orders", Number: int32(i)}
		w.seed(p)
		ta := w.process("A").claims(p, 5)
		ta.applies(5)
		f := w.person().does(c.act(ta.Fence))
		ta.refused(epoch.ErrStale, 1)
		again := ta.claims(p, 5)
		if again.Next != c.next || again.Epoch != f.Epoch+1 || again.SetUnder != f.SetUnder {
			w.Errorf("%d: the owner that claims again is at\n%+v, after\n%+v", i, again.Fence, f)
		}
		again.applies(1)
		want := []string{effect(0, 5), effect(1, 5), effect(2, 5), effect(3, 5), effect(4, 5), effect(c.next, 7)}
		w.wantList(p.String(), want...)
	}
}

func actIsAClaim(w *world) {
	w.seed(orders0)
	ta := w.process("A").claims(orders0, 41)
	ta.applies(3)
	a := to(epoch.ActRewind, ta.Fence, 1)
	a.Beginning = true
	f := w.person().does(a)
	if f.Epoch != 42 || f.Generation != 41 || f.Owner != "operator anna" || f.Claim != a.Claim || f.Next != 1 || f.Applied ||
		f.Mark != epoch.NoMark || f.SetUnder != 42 || f.Standing != (epoch.Standing{}) {
		w.Errorf("after the act the fence is\n%+v", f)
	}
	if found, err := w.person().op.Partition(w.ctx, orders0); err != nil || !found.Operated() {
		w.Errorf("the partition's claim is a person's: %+v, %v", found, err)
	}
	if tb := w.process("A").claims(orders0, 41); tb.Epoch != 43 || tb.Next != 1 {
		w.Errorf("the claim after it is\n%+v", tb.Fence)
	}
	if f = w.person().does(to(epoch.ActRewind, w.person().sees(orders0), 7)); !f.Applied {
		w.Errorf("a position that a person gave is not to be passed by retention: %+v", f)
	}
}

func actCompares(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	first := ta.Fence
	ta.applies(2)
	moved := ta.Fence
	tb := w.process("B").claims(orders0, 6)
	for name, c := range map[string]struct {
		act  epoch.Act
		want error
	}{
		"a rewind seen before the last claim": {to(epoch.ActRewind, moved, 1), epoch.ErrStale},
		"a pause seen before the last claim":  {act(epoch.ActPause, moved), epoch.ErrStale},
		"one seen before it, at the position": {to(epoch.ActRewind, first, 1), epoch.ErrStale},
	} {
		_, err := h.op.Act(w.ctx, c.act)
		w.wantOnly(err, c.want, "%s", name)
		tb.wantFence()
	}
	seen := tb.Fence
	tb.applies(1)
	for _, a := range []epoch.Act{to(epoch.ActRewind, seen, 0), to(epoch.ActSkip, seen, 9)} {
		_, err := h.op.Act(w.ctx, a)
		w.wantOnly(err, epoch.ErrMoved, "%s seen before the last advance", a.Kind)
		var m *epoch.MovedError
		if !errors.As(err, &m) || *m != (epoch.MovedError{Partition: orders0, From: 2, Next: 3}) {
			w.Errorf("the refusal is %#v", err)
		}
		tb.wantFence()
	}
	again := act(epoch.ActEvict, tb.Fence)
	again.Claim = tb.Claim
	if _, err := h.op.Act(w.ctx, again); err == nil {
		w.Error("an act under the claim that is there was done")
	}
	tb.wantFence()
	if f := h.does(act(epoch.ActEvict, seen)); f.Next != 3 { // it sets no position, so it need not be where it was seen
		w.Errorf("evicted at %d", f.Next)
	}
	if _, err := h.op.Act(w.ctx, act(epoch.ActEvict, epoch.Fence{Origin: origin(orders1)})); !errors.Is(err, epoch.ErrMissing) {
		w.Errorf("an act on a fence that is not there: %v", err)
	}
	for name, change := range map[string]func(*epoch.Act){
		"nobody":          func(a *epoch.Act) { a.By = " " },
		"no reason":       func(a *epoch.Act) { a.Reason = "" },
		"several lines":   func(a *epoch.Act) { a.Reason = "one\ntwo" },
		"a negative one":  func(a *epoch.Act) { a.To = &epoch.Position{Offset: -1} },
		"no claim id":     func(a *epoch.Act) { a.Claim = epoch.ClaimID{} },
		"no such act":     func(a *epoch.Act) { a.Kind = "delete" },
		"no position":     func(a *epoch.Act) { a.To = nil },
		"a log":           func(a *epoch.Act) { a.Log = "another" },
		"another's fence": func(a *epoch.Act) { a.Seen.Partition = orders1 },
	} {
		before := h.sees(orders0)
		a := to(epoch.ActRewind, before, 1)
		change(&a)
		if _, err := h.op.Act(w.ctx, a); !errors.Is(err, epoch.ErrAct) || h.sees(orders0) != before {
			w.Errorf("%s: %v", name, err)
		}
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
				f, err = w.db.Operator(w).Act(w.ctx, to(epoch.ActRewind, seen, epoch.Offset(n)))
			} else {
				f, err = a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, int64(round+1), a.name)))
			}
			if err == nil {
				won <- f
				return
			}
			w.isOnly(err, epoch.ErrStale, "%d acts or claims", n)
		})
		if len(won) != 1 {
			w.Fatalf("round %d: %d acts and claims from one reading were accepted", round, len(won))
		}
		if f, now := <-won, w.person().sees(orders0); f != now {
			w.Errorf("the one that was accepted returned\n%+v, and the fence is\n%+v", f, now)
		}
	}
}

func pausing(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.applies(2)
	if _, err := h.op.Act(w.ctx, act(epoch.ActResume, ta.Fence)); !errors.Is(err, epoch.ErrNothingToDo) {
		w.Errorf("resumed what was not paused: %v", err)
	}
	paused := h.does(act(epoch.ActPause, ta.Fence))
	ta.refused(epoch.ErrStale, 1)
	if paused.Standing.Since.IsZero() {
		w.Error("the pause has no time")
	}
	for range 2 {
		_, err := ta.sink.Claim(w.ctx, paused, epoch.NewClaim(lease(orders0, 6, "B")))
		var no *epoch.PausedError
		if want := (epoch.PausedError{Partition: orders0, Standing: paused.Standing}); !errors.As(err, &no) || *no != want || !errors.Is(err, epoch.ErrPaused) {
			w.Fatalf("a claim of a paused partition: %v", err)
		}
		if now := h.sees(orders0); now != paused {
			w.Fatalf("a refused claim left\n%+v, want\n%+v", now, paused)
		}
	}
	if _, err := h.op.Act(w.ctx, act(epoch.ActPause, paused)); !errors.Is(err, epoch.ErrNothingToDo) {
		w.Errorf("paused twice: %v", err)
	}
	moved := h.does(to(epoch.ActRewind, paused, 1))
	if moved.Standing != paused.Standing {
		w.Errorf("a rewind has changed the pause:\n%+v, want\n%+v", moved.Standing, paused.Standing)
	}
	if _, err := ta.sink.Claim(w.ctx, moved, epoch.NewClaim(lease(orders0, 6, "B"))); !errors.Is(err, epoch.ErrPaused) {
		w.Errorf("a claim after a rewind of a paused partition: %v", err)
	}
	h.does(act(epoch.ActResume, moved))
	tb := w.process("B").claims(orders0, 5)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 1@9")
}

func unclaimedActs(w *world) {
	w.seedAt(3, orders0)
	h := w.person()
	f := h.sees(orders0)
	for _, kind := range []epoch.ActKind{epoch.ActPause, epoch.ActResume, epoch.ActEvict} {
		if _, err := h.op.Act(w.ctx, act(kind, f)); !errors.Is(err, epoch.ErrNothingToDo) || h.sees(orders0) != f {
			w.Errorf("%s of a fence that was never claimed: %v", kind, err)
		}
	}
	f = h.does(to(epoch.ActRewind, f, 10))
	if f.Epoch != 1 || f.Next != 10 {
		w.Errorf("the fence is\n%+v", f)
	}
	c := epoch.NewClaim(lease(orders0, 5, "A"))
	c.Adopt = &epoch.Position{Offset: 99, Mark: epoch.NoMark}
	if got, err := w.process("A").sink.Claim(w.ctx, f, c); err == nil {
		w.Errorf("a claim took the place of a person's position with one that it adopts: %+v", got)
	}
	if ds := h.history(operate.HistoryQuery{Partition: &orders0}); len(ds) != 1 || ds[0].From != -1 || ds[0].To != 10 {
		w.Errorf("the log says %+v", ds)
	}
}

func signpostsAreLeftAlone(w *world) {
	o := origin(orders0)
	o.Log = epoch.SignpostLog + "3"
	at := epoch.Position{Mark: epoch.NoMark}
	if err := w.process("A").sink.Seed(w.ctx, []epoch.Start{{Origin: o, Next: at, Earliest: at}}); err != nil {
		w.Fatalf("seed: %v", err)
	}
	h := w.person()
	f := h.sees(orders0)
	rebase := to(epoch.ActRebase, f, 5)
	rebase.Log = "cluster-1/topic-1"
	for _, a := range []epoch.Act{to(epoch.ActRewind, f, 5), act(epoch.ActPause, f), rebase} {
		if _, err := h.op.Act(w.ctx, a); !errors.Is(err, epoch.ErrElsewhere) || !strings.Contains(err.Error(), "in shard 3") || h.sees(orders0) != f {
			w.Errorf("%s: %v", a.Kind, err)
		}
	}
}

func rebasing(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.applies(4)
	a := act(epoch.ActRebase, ta.Fence)
	a.Log = "cluster-1/topic-2"
	if _, err := h.op.Act(w.ctx, a); !errors.Is(err, epoch.ErrAct) {
		w.Errorf("another log without a position: %v", err)
	}
	a.To = &epoch.Position{Offset: 1, Mark: epoch.NoMark}
	f := h.does(a)
	if f.Log != a.Log || f.Source != "cluster-1" || f.Next != 1 {
		w.Errorf("the fence is\n%+v", f)
	}
	_, err := ta.sink.Claim(w.ctx, f, epoch.NewClaim(lease(orders0, 6, "A")))
	w.wantOnly(err, epoch.ErrLogChanged, "a claim of the log that was")
	l := lease(orders0, 6, "B")
	l.Log = a.Log
	w.process("B").swaps(f, l).applies(1)

	b := act(epoch.ActRebase, h.sees(orders0))
	b.Source = "cluster-2"
	if f = h.does(b); f.Next != 2 || f.Log != a.Log || f.Source != "cluster-2" {
		w.Errorf("the fence is\n%+v", f)
	}
	_, err = ta.sink.Claim(w.ctx, f, epoch.NewClaim(l))
	w.wantOnly(err, epoch.ErrForeignLease, "a claim from the lease source that was")
}

// sameAnswer compares what a sink says with what the protocol does.
func sameAnswer(got, want error) bool {
	for _, is := range append(slices.Clone(refusals), epoch.ErrPaused, epoch.ErrNothingToDo, epoch.ErrAct) {
		if errors.Is(got, is) != errors.Is(want, is) {
			return false
		}
	}
	return (got == nil) == (want == nil)
}

func actsAgainstModel(w *world) {
	h, a := w.person(), w.process("A")
	rapid.Check(w, func(t *rapid.T) {
		p := epoch.Partition{Group: fmt.Sprintf("acts-%d", groups.Add(1)), Topic: "orders"}
		w.seed(p)
		model := epoch.Fences{p: a.reads(p)}
		seen := []epoch.Fence{model[p]}
		draw := func() epoch.Fence { return seen[rapid.IntRange(max(0, len(seen)-2), len(seen)-1).Draw(t, "seen")] }
		check := func(what string, got, want epoch.Fence, err, wanted error) {
			if !sameAnswer(err, wanted) || err == nil && timeless(got) != timeless(want) {
				t.Fatalf("%s: %+v, %v; want %+v, %v", what, got, err, want, wanted)
			}
			if now := a.reads(p); timeless(now) != timeless(model[p]) {
				t.Fatalf("after %s the fence is\n%+v, want\n%+v", what, now, model[p])
			} else {
				seen = append(seen, now)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"act": func(t *rapid.T) {
				kinds := []epoch.ActKind{epoch.ActRewind, epoch.ActSkip, epoch.ActPause, epoch.ActResume, epoch.ActEvict, epoch.ActRebase}
				d := act(rapid.SampledFrom(kinds).Draw(t, "kind"), draw())
				if rapid.Bool().Draw(t, "sets a position") {
					d.To = &epoch.Position{Offset: epoch.Offset(rapid.IntRange(0, 9).Draw(t, "to")), Mark: 3}
					d.Beginning = rapid.Bool().Draw(t, "beginning")
				}
				if d.Kind == epoch.ActRebase {
					d.Log = rapid.SampledFrom([]string{"", "log-1", "log-2"}).Draw(t, "log")
					d.Source = rapid.SampledFrom([]string{"", "source-1"}).Draw(t, "source")
				}
				got, err := h.op.Act(w.ctx, d)
				want, wanted := model.Operate(d)
				check(string(d.Kind), got, want, err, wanted)
			},
			"claim": func(t *rapid.T) {
				f := draw()
				c := epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: rapid.Int64Range(1, 20).Draw(t, "generation"), Owner: "A"})
				got, err := a.sink.Claim(w.ctx, f, c)
				want, wanted := model.Claim(f, c)
				check("claim", got, want, err, wanted)
			},
			"advance": func(t *rapid.T) {
				f := draw()
				d := epoch.Advance{Partition: p, Claim: f.Claim, From: f.Next, To: f.Next + 2, Mark: 7}
				err := a.sink.Commit(w.ctx, []epoch.Advance{d}, func(context.Context, any) error { return nil })
				check("advance", epoch.Fence{}, epoch.Fence{}, err, model.Advance([]epoch.Advance{d}))
			},
		})
	})
}

// actsRaced has two processes claim and commit for as long as people act, and compares
// what was applied with what the decision log says.
func actsRaced(w *world) {
	w.seed(orders0)
	h := w.person()
	w.process("A").claims(orders0, 1).applies(3)
	ctx, stop := context.WithCancel(w.ctx)
	var working sync.WaitGroup
	for _, name := range []string{"A", "B"} {
		a := w.process(name)
		working.Go(func() { a.worksUntil(ctx, orders0) })
	}
	kinds := []epoch.ActKind{epoch.ActRewind, epoch.ActEvict, epoch.ActSkip, epoch.ActPause, epoch.ActResume, epoch.ActRewind}
	for done := 0; done < 4*len(kinds); {
		seen := h.sees(orders0)
		a := act(kinds[done%len(kinds)], seen)
		switch a.Kind {
		case epoch.ActRewind:
			a = to(epoch.ActRewind, seen, max(0, seen.Next-5))
		case epoch.ActSkip:
			a = to(epoch.ActSkip, seen, seen.Next+2)
		}
		switch _, err := h.op.Act(w.ctx, a); {
		case err == nil:
			done++
		case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrMoved), errors.Is(err, epoch.ErrTransient):
		default:
			stop()
			working.Wait()
			w.Fatalf("%s: %v", a.Kind, err)
		}
	}
	stop()
	working.Wait()
	if w.Failed() {
		w.FailNow()
	}
	story, err := operate.Explain(w.ctx, h.op, orders0, operate.Question{At: time.Now().Add(-time.Hour)})
	if err != nil || !story.Complete {
		w.Fatalf("the story is %+v, %v", story, err)
	}
	var want []string
	var before *operate.Span
	for _, s := range h.spans(orders0) {
		if before != nil && before.To != s.Claim.From {
			w.Errorf("%+v ends at %d, and %+v begins at %d", before.Claim, before.To, s.Claim, s.Claim.From)
		}
		before = &s
		for o := s.From; o < s.To; o++ {
			if s.Claim.By != "" {
				w.Errorf("offset %d was applied under a person's act: %+v", o, s.Claim)
			}
			want = append(want, effect(o, s.Claim.Epoch))
		}
	}
	w.wantList(orders0.String(), want...)
}

// spans are all that the decision log tells of p.
func (h *person) spans(p epoch.Partition) (all []operate.Span) {
	h.w.Helper()
	for _, d := range slices.Backward(h.history(operate.HistoryQuery{Partition: &p, Limit: 100_000})) {
		if !d.Kind.Swaps() {
			continue
		}
		story, err := operate.Explain(h.w.ctx, h.op, p, operate.Question{Claim: d.Claim})
		if err != nil || len(story.Spans) != 1 {
			h.w.Fatalf("the story of claim %s: %+v, %v", d.Claim, story, err)
		}
		all = append(all, story.Spans[0])
	}
	return all
}

// worksUntil claims and commits for as long as ctx lasts.
func (a *process) worksUntil(ctx context.Context, p epoch.Partition) {
	for ctx.Err() == nil {
		seen, err := a.sink.Fence(a.w.ctx, p)
		if err != nil {
			a.w.Errorf("%s reads: %v", a.name, err)
			return
		}
		f, err := a.sink.Claim(a.w.ctx, seen, epoch.NewClaim(lease(p, 1, a.name)))
		for n := 0; err == nil && n < 20 && ctx.Err() == nil; n++ {
			d := epoch.Advance{Partition: p, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: epoch.NoMark}
			err = a.sink.Commit(a.w.ctx, []epoch.Advance{d}, func(ctx context.Context, tx any) error { return a.w.effects(ctx, tx, d, f.Epoch) })
			f.Next++
		}
		switch {
		case err == nil, errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrPaused), errors.Is(err, epoch.ErrInDoubt), errors.Is(err, epoch.ErrTransient):
		default:
			a.w.Errorf("%s works: %v", a.name, err)
			return
		}
	}
}

func (h *person) history(q operate.HistoryQuery) []epoch.Decision {
	h.w.Helper()
	ds, err := h.op.History(h.w.ctx, q)
	if err != nil {
		h.w.Fatalf("the decision log: %v", err)
	}
	return ds
}

// told is a decision as the histories write it.
func told(d epoch.Decision) string {
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
func (h *person) wantLog(p epoch.Partition, want ...string) []epoch.Decision {
	h.w.Helper()
	ds := h.history(operate.HistoryQuery{Partition: &p})
	slices.Reverse(ds)
	var got []string
	for _, d := range ds {
		got = append(got, told(d))
	}
	if !slices.Equal(got, want) {
		h.w.Errorf("the decision log of %s says\n%s\nwant\n%s", p, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return ds
}

func decisionsAreLogged(w *world) {
	w.seedAt(3, orders0, orders1)
	h, a := w.person(), w.process("A")
	adopts := epoch.NewClaim(lease(orders0, 5, "A"))
	adopts.Adopt = &epoch.Position{Offset: 10, Mark: epoch.NoMark}
	f, err := a.sink.Claim(epoch.WithTraceID(w.ctx, "4bf92f3577b34da6"), a.reads(orders0), adopts)
	if err != nil {
		w.Fatalf("claim: %v", err)
	}
	ta := &tenure{process: a, Fence: f}
	ta.applies(2)
	ta.applies(0)
	if _, err := a.sink.Claim(w.ctx, epoch.Fence{Origin: f.Origin}, epoch.NewClaim(lease(orders0, 9, "B"))); err == nil {
		w.Fatalf("a stale claim was accepted")
	}
	tb := w.process("B").claims(orders0, 6)
	rewind := to(epoch.ActRewind, tb.Fence, 4)
	rewind.TraceID = "00f067aa0ba902b7"
	h.does(rewind)
	if _, err := h.op.Act(w.ctx, to(epoch.ActRewind, tb.Fence, 3)); err == nil {
		w.Fatalf("a stale act was done")
	}
	ta.refused(epoch.ErrStale, 1)
	ds := h.wantLog(orders0, "claim 5 -1>10", "claim 6 12>12", "rewind 7 12>4 anna: for the test")
	if ds[0].TraceID != "4bf92f3577b34da6" || ds[2].TraceID != rewind.TraceID || ds[0].Claim != f.Claim || ds[0].Owner != "A" ||
		ds[2].Claim != rewind.Claim || ds[2].Owner != "operator anna" {
		w.Errorf("the decisions are %+v", ds)
	}
	for i, d := range ds {
		if d.At.IsZero() || d.Partition != orders0 || i > 0 && d.ID <= ds[i-1].ID {
			w.Errorf("decision %d is %+v", i, d)
		}
	}
	h.wantLog(orders1)
}

func (a *process) operable() epoch.Operable[any] {
	a.w.Helper()
	if e, ok := a.sink.(interface {
		operable() (epoch.Operable[any], bool)
	}); ok {
		if o, ok := e.operable(); ok {
			return o
		}
	}
	a.w.Fatalf("the sink is no epoch.Operable")
	return nil
}

func recording(w *world) {
	w.seed(orders0)
	a := w.process("A")
	f := a.claims(orders0, 5)
	var ds []epoch.Decision
	for i, kind := range []epoch.DecisionKind{epoch.DecidedStale, epoch.DecidedHalt, epoch.DecidedLoss, epoch.DecidedInDoubt} {
		ds = append(ds, epoch.Decision{
			Kind: kind, Partition: orders0, Epoch: f.Epoch, Claim: f.Claim, Owner: "A",
			From: epoch.Offset(i), To: -1, Reason: fmt.Sprintf("reason \x00\xff %d", i), By: "forged", TraceID: "t",
		})
	}
	if err := a.operable().Record(w.ctx, ds); err != nil {
		w.Fatalf("record: %v", err)
	}
	log := w.person().history(operate.HistoryQuery{Partition: &orders0})
	if len(log) != 5 {
		w.Fatalf("the log has %d entries: %+v", len(log), log)
	}
	slices.Reverse(log)
	for i, d := range log[1:] {
		if d.Kind != ds[i].Kind || d.From != epoch.Offset(i) || d.To != -1 || d.By != "" || d.Claim != f.Claim || d.Epoch != 5 ||
			d.TraceID != "t" || !strings.HasSuffix(d.Reason, strconv.Itoa(i)) {
			w.Errorf("entry %d is %+v", i, d)
		}
	}
	for _, kind := range []epoch.DecisionKind{epoch.DecidedClaim, epoch.DecidedRewind, epoch.DecidedDiscard, "anything"} {
		ds[0].Kind = kind
		if err := a.operable().Record(w.ctx, ds[:1]); err == nil {
			w.Errorf("a consumer recorded %s", kind)
		}
	}
	if err := a.operable().Record(w.ctx, nil); err != nil {
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
	h.does(act(epoch.ActEvict, h.sees(orders0)))
	count := func(want int, q operate.HistoryQuery) []epoch.Decision {
		w.Helper()
		ds := h.history(q)
		if len(ds) != want {
			w.Errorf("%+v selects %d entries, want %d: %+v", q, len(ds), want, ds)
		}
		return ds
	}
	count(11, operate.HistoryQuery{})
	count(6, operate.HistoryQuery{Partition: &orders0})
	count(1, operate.HistoryQuery{Claim: claims[2]})
	count(10, operate.HistoryQuery{Kinds: []epoch.DecisionKind{epoch.DecidedClaim}})
	count(11, operate.HistoryQuery{Kinds: []epoch.DecisionKind{epoch.DecidedClaim, epoch.DecidedEvict}})
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
	h.does(act(epoch.ActPause, h.sees(orders1)))
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
		if err != nil {
			w.Fatalf("list: %v", err)
		}
		var got []epoch.Partition
		for _, f := range found {
			got = append(got, f.Fence.Partition)
			letters := map[epoch.Partition]int64{orders1: 2}[f.Fence.Partition]
			if f.DeadLetters != letters || f.Now.IsZero() || f.ClaimedAt.IsZero() != (f.Epoch == 0) || f.Fence != w.process("B").reads(f.Fence.Partition) {
				w.Errorf("%+v", f)
			}
		}
		if !slices.Equal(got, c.want) {
			w.Errorf("%+v selects %v, want %v", c.filter, got, c.want)
		}
	}
	if _, err := h.op.Partition(w.ctx, orders2); !errors.Is(err, epoch.ErrMissing) {
		w.Errorf("a fence that is not there: %v", err)
	}
}

// letter is the message of a dead letter at an offset.
func letter(p epoch.Partition, at epoch.Offset) epoch.Message {
	return epoch.Message{
		Partition: p, Offset: at, Key: []byte("k\xff"), Value: []byte{0, 0xfe},
		Headers: []epoch.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{0xff}}, {Key: "b\xff", Value: []byte{}}},
		Time:    time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC),
	}
}

// buries moves past messages, each of which becomes a dead letter.
func (t *tenure) buries(messages int) {
	t.w.Helper()
	for range messages {
		d := t.advance(1)
		err := t.commit([]epoch.Advance{d}, func(ctx context.Context, tx any) error {
			return t.w.db.DeadLetter(ctx, tx, letter(d.Partition, d.From), t.Epoch, fmt.Errorf("poison %d", d.From))
		})
		if err != nil {
			t.w.Fatalf("%s puts offset %d aside: %v", t.name, d.From, err)
		}
		t.Next, t.Mark, t.Applied = d.To, d.Mark, true
	}
}

func (h *person) letters(q operate.DeadLetterQuery) []operate.DeadLetter {
	h.w.Helper()
	ls, err := h.op.DeadLetters(h.w.ctx, q)
	if err != nil {
		h.w.Fatalf("list dead letters: %v", err)
	}
	return ls
}

func showingDeadLetters(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(3)
	w.process("A").claims(orders1, 6).buries(1)
	all := h.letters(operate.DeadLetterQuery{})
	if len(all) != 4 {
		w.Fatalf("%d dead letters: %+v", len(all), all)
	}
	for i, l := range all[:3] {
		m := letter(orders0, epoch.Offset(i))
		if l.Message.Partition != orders0 || l.Message.Offset != m.Offset || !l.Message.Time.Equal(m.Time) || l.Message.Key != nil || l.Message.Value != nil ||
			l.Message.Headers != nil || l.Error != fmt.Sprintf("poison %d", i) || l.Epoch != 5 || l.At.IsZero() || l.Requested || l.Request != 0 {
			w.Errorf("listed: %+v", l)
		}
		shown, err := h.op.DeadLetter(w.ctx, l.ID)
		if err != nil || fmt.Sprintf("%+v", shown.Message) != fmt.Sprintf("%+v", m) {
			w.Errorf("shown: %+v, %v; want the message %+v", shown, err, m)
		}
	}
	for n, q := range map[int]operate.DeadLetterQuery{
		3: {Filter: operate.Filter{Group: "billing", Topic: "orders"}, Number: new(int32)},
		2: {After: all[1].ID},
		1: {Limit: 1},
		0: {Requested: true},
	} {
		if ls := h.letters(q); len(ls) != n {
			w.Errorf("%+v selects %d", q, len(ls))
		}
	}
	if _, err := h.op.DeadLetter(w.ctx, 1<<40); !errors.Is(err, operate.ErrNoDeadLetter) {
		w.Errorf("one that is not there: %v", err)
	}
}

func (h *person) doesLetter(kind operate.DeadLetterKind, seen operate.DeadLetter) operate.DeadLetter {
	h.w.Helper()
	l, err := h.op.DoDeadLetter(h.w.ctx, operate.DeadLetterAct{Kind: kind, Seen: seen, By: "anna", Reason: "mended"})
	if err != nil {
		h.w.Fatalf("%s dead letter %d: %v", kind, seen.ID, err)
	}
	return l
}

// requested are the replays that are asked of the owner of p.
func (a *process) requested(ps ...epoch.Partition) []epoch.Replay {
	a.w.Helper()
	r, err := a.operable().Requests(a.w.ctx, ps)
	if err != nil {
		a.w.Fatalf("look for requests: %v", err)
	}
	return r.Replays
}

// replays runs the transaction in which a dead letter is replayed.
func (t *tenure) replays(r epoch.Replay) error {
	t.w.Helper()
	return t.commit([]epoch.Advance{t.advance(0)}, func(ctx context.Context, tx any) error {
		if err := t.w.db.Append(ctx, tx, t.Partition.String(), effect(r.Message.Offset, t.Epoch)); err != nil {
			return err
		}
		return t.operable().Replayed(ctx, tx, r, t.Epoch)
	})
}

func replaying(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(3)
	ls := h.letters(operate.DeadLetterQuery{})
	if rs := ta.requested(orders0, orders1); len(rs) != 0 {
		w.Fatalf("nothing is requested, and %+v is", rs)
	}
	l := h.doesLetter(operate.Replay, ls[1])
	if !l.Requested || l.Request != 1 || l.RequestedBy != "anna" || l.RequestedAt.IsZero() {
		w.Errorf("requested: %+v", l)
	}
	rs := ta.requested(orders1, orders0)
	if len(rs) != 1 || rs[0].ID != l.ID || rs[0].Request != 1 || fmt.Sprintf("%+v", rs[0].Message) != fmt.Sprintf("%+v", letter(orders0, 1)) {
		w.Fatalf("requested are %+v", rs)
	}
	if none := ta.requested(orders1); len(none) != 0 {
		w.Errorf("of another partition, %+v is requested", none)
	}

	tb := w.process("B").claims(orders0, 6)
	w.wantOnly(ta.replays(rs[0]), epoch.ErrStale, "the replay of an owner that has lost its claim")
	w.wantList(orders0.String())
	if n := len(tb.requested(orders0)); n != 1 {
		w.Fatalf("after a replay that was refused %d are requested", n)
	}
	if err := tb.replays(rs[0]); err != nil {
		w.Fatalf("the replay: %v", err)
	}
	tb.wantFence()
	w.wantList(orders0.String(), effect(1, 6))
	if _, err := h.op.DeadLetter(w.ctx, l.ID); !errors.Is(err, operate.ErrNoDeadLetter) || len(h.letters(operate.DeadLetterQuery{})) != 2 {
		w.Errorf("what was replayed is still there: %v", err)
	}
	h.wantLog(orders0, "claim 5 -1>0", fmt.Sprintf("replay-request 5 1>1 anna: dead letter %d: mended", l.ID), "claim 6 3>3",
		fmt.Sprintf("replay 6 1>1 anna: dead letter %d", l.ID))
	if err := tb.replays(rs[0]); err == nil {
		w.Error("it was replayed twice")
	}
	w.wantList(orders0.String(), effect(1, 6))
}

func replayedOnce(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(2)
	ls := h.letters(operate.DeadLetterQuery{})
	first := h.doesLetter(operate.Replay, ls[0])
	old := ta.requested(orders0)[0]
	withdrawn := h.doesLetter(operate.Withdraw, first)
	if err := ta.replays(old); err == nil || len(ta.requested(orders0)) != 0 {
		w.Errorf("what was withdrawn is replayed: %v", err)
	}
	again := h.doesLetter(operate.Replay, withdrawn)
	if err := ta.replays(old); err == nil || again.Request != 2 {
		w.Errorf("%+v: an earlier request is carried out: %v", again, err)
	}
	if err := ta.operable().ReplayFailed(w.ctx, old, 5, errors.New("late")); err != nil {
		w.Errorf("the failure of an earlier request: %v", err)
	}
	now := ta.requested(orders0)
	if len(now) != 1 || now[0].Request != 2 {
		w.Fatalf("requested are %+v", now)
	}
	h.doesLetter(operate.Discard, again)
	if err := ta.replays(now[0]); err == nil {
		w.Error("what was discarded is replayed")
	}
	w.wantList(orders0.String())
	ta.wantFence()

	// Of many that replay one at a time, one does.
	h.doesLetter(operate.Replay, ls[1])
	r := ta.requested(orders0)[0]
	var mu sync.Mutex
	done := 0
	w.together(4, func(_ int, a *process) {
		t := &tenure{process: a, Fence: ta.Fence}
		if err := t.replays(r); err == nil {
			mu.Lock()
			done++
			mu.Unlock()
		}
	})
	if done != 1 {
		w.Errorf("replayed %d times", done)
	}
	w.wantList(orders0.String(), effect(1, 5))

	tb := w.process("B").claims(orders1, 5)
	tb.buries(1)
	h.doesLetter(operate.Replay, h.letters(operate.DeadLetterQuery{})[0])
	if err := ta.replays(tb.requested(orders1)[0]); err == nil {
		w.Error("a dead letter was replayed under a claim of another partition")
	}
}

func replayFails(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(1)
	l := h.doesLetter(operate.Replay, h.letters(operate.DeadLetterQuery{})[0])
	r := ta.requested(orders0)[0]
	if err := ta.operable().ReplayFailed(w.ctx, r, ta.Epoch, errors.New("still \x00 poison")); err != nil {
		w.Fatalf("record the failure: %v", err)
	}
	now, err := h.op.DeadLetter(w.ctx, l.ID)
	if err != nil || now.Requested || now.Request != 1 || !strings.HasSuffix(now.ReplayError, "poison") || now.ReplayFailedAt.IsZero() {
		w.Errorf("after a failure: %+v, %v", now, err)
	}
	if len(ta.requested(orders0)) != 0 {
		w.Error("what has failed is still requested")
	}
	ds := h.history(operate.HistoryQuery{Kinds: []epoch.DecisionKind{epoch.DecidedReplayFailure}})
	if len(ds) != 1 || ds[0].Epoch != 5 || ds[0].Claim != ta.Claim || ds[0].By != "anna" || !strings.Contains(ds[0].Reason, "poison") {
		w.Errorf("the log says %+v", ds)
	}
	h.doesLetter(operate.Replay, now)
	if rs := ta.requested(orders0); len(rs) != 1 || ta.replays(rs[0]) != nil {
		w.Errorf("it cannot be requested again: %+v", rs)
	}
	w.wantList(orders0.String(), effect(0, 5))
}

func deadLetterCompares(w *world) {
	w.seed(orders0)
	h := w.person()
	w.process("A").claims(orders0, 5).buries(1)
	seen := h.letters(operate.DeadLetterQuery{})[0]
	do := func(kind operate.DeadLetterKind, seen operate.DeadLetter) error {
		_, err := h.op.DoDeadLetter(w.ctx, operate.DeadLetterAct{Kind: kind, Seen: seen, By: "anna", Reason: "mended"})
		return err
	}
	if err := do(operate.Withdraw, seen); !errors.Is(err, epoch.ErrNothingToDo) {
		w.Errorf("withdrawn what was not requested: %v", err)
	}
	now := h.doesLetter(operate.Replay, seen)
	for _, kind := range []operate.DeadLetterKind{operate.Replay, operate.Withdraw, operate.Discard} {
		if err := do(kind, seen); !errors.Is(err, operate.ErrDeadLetterChanged) {
			w.Errorf("%s of what has changed: %v", kind, err)
		}
	}
	if err := do(operate.Replay, now); !errors.Is(err, epoch.ErrNothingToDo) {
		w.Errorf("requested twice: %v", err)
	}
	for name, a := range map[string]operate.DeadLetterAct{
		"nobody":      {Kind: operate.Discard, Seen: now, Reason: "mended"},
		"no reason":   {Kind: operate.Discard, Seen: now, By: "anna"},
		"no such act": {Kind: "bury", Seen: now, By: "anna", Reason: "mended"},
	} {
		if _, err := h.op.DoDeadLetter(w.ctx, a); !errors.Is(err, epoch.ErrAct) {
			w.Errorf("%s: %v", name, err)
		}
	}
	h.doesLetter(operate.Discard, now)
	if err := do(operate.Discard, now); !errors.Is(err, operate.ErrNoDeadLetter) {
		w.Errorf("discarded twice: %v", err)
	}
	if ds := h.history(operate.HistoryQuery{}); len(ds) != 3 {
		w.Errorf("the log has %+v", ds)
	}
}

func actsAreCounted(w *world) {
	w.seed(orders0)
	h, a := w.person(), w.process("A")
	a.claims(orders0, 5)
	number := func() int64 {
		r, err := a.operable().Requests(w.ctx, []epoch.Partition{orders0})
		if err != nil {
			w.Fatalf("look for requests: %v", err)
		}
		return r.Acts
	}
	before := number()
	a.claims(orders0, 6).applies(1)
	if number() != before {
		w.Error("a claim counts as an act")
	}
	h.does(act(epoch.ActEvict, h.sees(orders0)))
	if number() == before {
		w.Error("an act does not count")
	}
}
