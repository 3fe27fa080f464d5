package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

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
				kinds := []operate.ActKind{operate.ActRewind, operate.ActSkip, operate.ActPause, operate.ActResume, operate.ActEvict, operate.ActRebase, operate.ActRun}
				d := act(rapid.SampledFrom(kinds).Draw(t, "kind"), draw())
				if rapid.Bool().Draw(t, "sets a position") {
					d.To = &epoch.Position{Offset: epoch.Offset(rapid.IntRange(0, 9).Draw(t, "to")), Mark: 3}
					d.Beginning = rapid.Bool().Draw(t, "beginning")
				}
				if d.Kind == operate.ActRebase {
					d.Log = rapid.SampledFrom([]string{"", "log-1", operate.JobLog}).Draw(t, "log")
					d.Source = rapid.SampledFrom([]string{"", "source-1"}).Draw(t, "source")
				}
				got, err := h.op.Act(w.ctx, d)
				want, wanted := d.ApplyTo(model)
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
				err := a.sink.Commit(w.ctx, []epoch.Advance{d}, epoch.TxOptions{}, func(context.Context, any) error { return nil })
				check("advance", epoch.Fence{}, epoch.Fence{}, err, model.Advance([]epoch.Advance{d}))
			},
		})
	})
}

// actsRaced makes two processes claim and commit while operators act, and compares the applied
// messages with the audit log.
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
	kinds := []operate.ActKind{operate.ActRewind, operate.ActEvict, operate.ActSkip, operate.ActPause, operate.ActResume, operate.ActRewind}
	for done := 0; done < 4*len(kinds); {
		seen := h.sees(orders0)
		a := act(kinds[done%len(kinds)], seen)
		switch a.Kind {
		case operate.ActRewind:
			a = to(operate.ActRewind, seen, max(0, seen.Next-5))
		case operate.ActSkip:
			a = to(operate.ActSkip, seen, seen.Next+2)
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
	w.Mustf(err == nil && story.Complete, "the story is %+v, %v", story, err)
	var want []string
	var before *operate.Span
	for _, s := range h.spans(orders0) {
		if before != nil && before.To != s.Claim.From {
			w.Errorf("%+v ends at %d, and %+v begins at %d", before.Claim, before.To, s.Claim, s.Claim.From)
		}
		before = &s
		for o := s.From; o < s.To; o++ {
			w.Wantf(s.Claim.By == "", "offset %d was applied under an operator's act: %+v", o, s.Claim)
			want = append(want, effect(o, s.Claim.Epoch))
		}
	}
	w.wantList(orders0.String(), want...)
}

func (h *person) spans(p epoch.Partition) (all []operate.Span) {
	h.w.Helper()
	for _, d := range slices.Backward(h.history(operate.HistoryQuery{Partition: &p, Limit: 100_000})) {
		if !d.Kind.ReplacesClaim() {
			continue
		}
		story, err := operate.Explain(h.w.ctx, h.op, p, operate.Question{Claim: d.Claim})
		h.w.Mustf(err == nil && len(story.Spans) == 1, "the story of claim %s: %+v, %v", d.Claim, story, err)
		all = append(all, story.Spans[0])
	}
	return all
}

func (a *process) worksUntil(ctx context.Context, p epoch.Partition) {
	for ctx.Err() == nil {
		seen, err := a.sink.Fence(a.w.ctx, p)
		if errors.Is(err, epoch.ErrTransient) {
			continue
		}
		if err != nil {
			a.w.Errorf("%s reads: %v", a.name, err)
			return
		}
		f, err := a.sink.Claim(a.w.ctx, seen, epoch.NewClaim(lease(p, 1, a.name)))
		for n := 0; err == nil && n < 20 && ctx.Err() == nil; n++ {
			d := epoch.Advance{Partition: p, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: epoch.NoMark}
			err = a.sink.Commit(a.w.ctx, []epoch.Advance{d}, epoch.TxOptions{}, func(ctx context.Context, tx any) error { return a.w.effects(ctx, tx, d, f.Epoch) })
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
