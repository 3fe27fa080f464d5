package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file lists the histories of operators, and has those of jobs' runs, of signs of life and of acts
// at random.

var operated = []history{
	{"a live owner is fenced by an act, claims again, and continues from where it was told", "R1 R6 R8", ownerIsTold},
	{"an act takes the next epoch, keeps the lease's generation, and names the person", "R1", actIsAClaim},
	{"an act compares what was seen: the epoch and the claim, and the position where it sets one", "R2", actCompares},
	{"of many acts from one reading, one is done", "R2", oneOfManyActs},
	{"a paused partition takes no claim, says who has paused it and why, and continues once it is resumed", "R2", pausing},
	{"a fence that was never claimed takes a position, and nothing else", "R8", unclaimedActs},
	{"what only says that a partition is in another database is left alone", "R1", redirectRowsAreLeftAlone},
	{"another log and another lease source are accepted with a position", "R2 R10", rebasing},
	{"a run is requested of a job, at its position and with a mark, and of no other partition", "R2", runsAreRequested},
	{"acts at random: every answer is as epoch.Fences says", "R1 R2", actsAgainstModel},
	{"each claim and each act is in the audit log, and nothing that was refused or committed", "R1", decisionsAreLogged},
	{"what consumers record is in the audit log, and they record no acts", "R1", recording},
	{"what hangs is read by the next owner: the newest first, and nothing from before an operator let the partition continue", "R12", hanging},
	{"of what hangs again and again, the newest is read", "R12", hangingOften},
	{"a process is listed from its first sign of life to its end, with the database's time", "L5", signsOfLife},
	{"a process whose signs stop is not alive, and is listed until another one is in its place", "L5", signsThatStop},
	{"a sign of life fails for no name", "L5", signsOfOddProcesses},
	{"the audit log is read by partition, claim, kind and page", "R1", readingTheLog},
	{"fences are listed by group and topic, with their dead letters", "R1", listing},
	{"a dead letter is shown whole, and listed without its content", "R1", showingDeadLetters},
	{"a replay that is requested takes the dead letter away with its effects, or neither", "R1 R6", replaying},
	{"an owner is given the first of the replays that are requested, few of each partition and in all", "L5", fewRequests},
	{"a replay that was withdrawn, carried out or discarded meanwhile is not committed", "R1", replayedOnce},
	{"a replay that fails stays a dead letter, with the reason", "R1", replayFails},
	{"what is deferred is given to the owner once it is due, and not before; it is applied once, by whoever owns the partition then", "R1 R6", deferring},
	{"what is deferred is no dead letter, and operators replay, withdraw and discard it", "R2", deferredIsOperated},
	{"of the text of an error, as much is kept as every store can have", "R12", longTexts},
	{"what is done to a dead letter compares its requests", "R2", deadLetterCompares},
	{"a number changes with each act, for whoever looks after fences", "R5", actsAreCounted},
}

// operatedWhole are of sinks that commit all effects of a transaction with its positions.
var operatedWhole = []history{
	{"acts beside claimers and committers: under each claim exactly the messages of its span are applied, as the audit log tells it", "R1 R2 R5", actsRaced},
}

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
	h.w.NoErrorf(err, "read %s", p)
	return found.Fence
}

func act(kind operate.ActKind, seen epoch.Fence) operate.Act {
	return operate.NewAct(kind, seen, "anna", "for the test")
}

func to(kind operate.ActKind, seen epoch.Fence, at epoch.Offset) operate.Act {
	a := act(kind, seen)
	a.To = &epoch.Position{Offset: at, Mark: epoch.NoMark}
	return a
}

// does takes action a, which must succeed and follow the protocol.
func (h *person) does(a operate.Act) epoch.Fence {
	h.w.Helper()
	before := h.sees(a.Partition)
	f, err := h.op.Act(h.w.ctx, a)
	h.w.NoErrorf(err, "%s %s", a.Kind, a.Partition)
	want, err := a.Apply(before)
	h.w.NoErrorf(err, "the history itself is wrong")
	h.w.Mustf(timeless(f) == timeless(want), "%s %s: the fence is\n%+v, want\n%+v", a.Kind, a.Partition, f, want)
	now := h.sees(a.Partition)
	h.w.Mustf(now == f, "%s %s returned\n%+v, and the fence is\n%+v", a.Kind, a.Partition, f, now)
	return f
}

// timeless returns a fence without the time that its database has set.
func timeless(f epoch.Fence) epoch.Fence {
	f.Pause.Since = time.Time{}
	return f
}

func runsAreRequested(w *world) {
	nightly := epoch.Partition{Group: "billing", Topic: "nightly"}
	job, l := start(nightly, 5_000_000, 0), lease(nightly, 5, "A")
	job.Log, l.Log = operate.JobLog, operate.JobLog
	h, a := w.person(), w.process("A")
	a.seeds(job)
	ta := a.swaps(a.reads(nightly), l)
	ta.applies(2)
	ta.recordsHangs(operate.DecidedHang, 5_000_002, 5_000_003, 1)

	run := to(operate.ActRun, ta.Fence, 6_000_000)
	run.To.Mark = 1
	w.seed(orders0)
	a.claims(orders0, 5)
	for name, change := range map[string]func(*operate.Act){
		"of a partition that is no job": func(a *operate.Act) { a.Partition, a.Seen = orders0, h.sees(orders0); a.To.Offset = 0 },
		"without a mark":                func(a *operate.Act) { a.To.Mark = epoch.NoMark },
		"before the position":           func(a *operate.Act) { a.To.Offset = 5_000_001 },
		"a second after it":             func(a *operate.Act) { a.To.Offset = 6_000_002 },
		"at the beginning":              func(a *operate.Act) { a.Beginning = true },
		"nowhere":                       func(a *operate.Act) { a.To = nil },
	} {
		wrong := run
		at := *run.To
		wrong.To = &at
		change(&wrong)
		before := h.sees(wrong.Partition)
		_, err := h.op.Act(w.ctx, wrong)
		w.Wantf(errors.Is(err, operate.ErrAct) && h.sees(wrong.Partition) == before, "a run %s: %v", name, err)
	}
	a.wantHangs(nightly, "hang 5000002>5000003 A")

	before := a.acts(nightly)
	f := h.does(run)
	w.Wantf(f.Next == 6_000_000 && f.Mark == 1 && f.SetUnder == f.Epoch && f.Applied, "after the request the fence is\n%+v", f)
	ta.refused(epoch.ErrStale, 1)
	a.wantHangs(nightly)
	w.Wantf(a.acts(nightly) != before, "a requested run does not count as an act")
	h.wantLog(nightly, "claim 5 -1>5000000", "hang 5 5000002>5000003: it waits", "run 6 5000002>6000000 anna: for the test")
}

// acts returns the number that changes with each act.
func (a *process) acts(p epoch.Partition) int64 {
	a.w.Helper()
	r, err := a.records().Requests(a.w.ctx, []epoch.Partition{p})
	a.w.NoErrorf(err, "look for requests")
	return r.Acts
}

func lives(run, group, name string) operate.Process {
	return operate.Process{Run: run, Group: group, Name: name, Host: "pod-" + name, PID: 7, Version: "example.com/shop@v1.2.3", Every: time.Minute}
}

func (a *process) alive(p operate.Process) {
	a.w.Helper()
	a.w.NoErrorf(a.records().Alive(a.w.ctx, p), "sign of life of %+v", p)
}

func (h *person) processes(group string, runs ...string) []operate.Process {
	h.w.Helper()
	ps, err := h.op.Processes(h.w.ctx, group)
	h.w.NoErrorf(err, "list processes")
	var got []string
	for _, p := range ps {
		got = append(got, p.Run)
	}
	h.w.Wantf(slices.Equal(got, runs), "the processes of group %q are %q, want %q", group, got, runs)
	return ps
}

func signsOfLife(w *world) {
	h, a, b := w.person(), w.process("A"), w.process("B")
	h.processes("")
	one, two, other := lives("run-1", "billing", "host-1"), lives("run-2", "billing", "host-2"), lives("run-3", "other", "host-1")
	a.alive(one)
	b.alive(two)
	b.alive(other)
	h.processes("", "run-1", "run-2", "run-3")
	h.processes("other", "run-3")
	h.processes("nobody")
	first := h.processes("billing", "run-1", "run-2")[0]
	want := one
	want.Since, want.Seen, want.Now = first.Since, first.Seen, first.Now
	if first != want || first.Since.IsZero() || first.Seen.Before(first.Since) || first.Now.Before(first.Seen) || !first.Alive() {
		w.Errorf("the process is %+v, want %+v", first, want)
	}

	// Since is the time of its first sign and Seen of its last, by the database's clock.
	w.until("the next sign comes later", func() bool {
		one.Problems = "billing/orders/0: the handler hangs\nnot a member of the group"
		one.Every, one.Since, one.Seen = 2*time.Minute, time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		a.alive(one)
		now := h.processes("billing", "run-1", "run-2")[0]
		if !now.Since.Equal(first.Since) || now.Every != one.Every || now.Problems != one.Problems || now.Seen.Before(first.Seen) || now.Now.Before(now.Seen) {
			w.Errorf("the process is %+v, it was %+v", now, first)
		}
		return now.Seen.After(first.Seen)
	})

	for range 2 {
		err := a.records().Gone(w.ctx, one)
		w.Wantf(err == nil, "gone: %v", err)
	}
	seen, err := a.ledger().Rows(w.ctx, operate.RowQuery{Kind: operate.KindProcess, Filter: operate.Filter{Group: "billing"}})
	w.Mustf(err == nil && len(seen) == 1, "%d rows, %v", len(seen), err)
	b.alive(two)
	if err := a.ledger().Write(w.ctx, operate.Change{Row: seen[0], Remove: true}); err != nil {
		w.Errorf("sweep a process that lives after all: %v", err)
	}
	h.processes("billing", "run-2")
}

func signsThatStop(w *world) {
	h, a := w.person(), w.process("A")
	living, dead := lives("run-1", "billing", "host-1"), lives("run-2", "billing", "host-1")
	dead.Every = 10 * time.Millisecond
	a.alive(living)
	a.alive(dead)
	w.until("a process that gives no sign is not alive", func() bool {
		ps := h.processes("", "run-1", "run-2")
		return len(ps) == 2 && ps[0].Alive() && !ps[1].Alive()
	})

	// It stays listed while other processes give signs, until one takes its place.
	a.alive(lives("run-3", "billing", "host-2"))
	a.alive(lives("run-4", "other", "host-1"))
	h.processes("", "run-1", "run-2", "run-3", "run-4")
	a.alive(living)
	ps := operate.Lives(h.processes("", "run-1", "run-3", "run-4"))
	fence := epoch.Fence{Origin: epoch.Origin{Partition: orders0}, Owner: "host-1/member"}
	p, known := ps.Owner(fence)
	w.Wantf(p.Run == "run-1" && known && ps.Alive("billing") == 2 && ps.Alive("nobody") == 0, "the owner of what %q has claimed is %+v of %+v", fence.Owner, p, ps)
}

func (w *world) until(what string, so func() bool) {
	w.Helper()
	w.Mustf(waits.Until(w.ctx, 5*time.Millisecond, so), "did not happen: %s", what)
}

func signsOfOddProcesses(w *world) {
	h, a := w.person(), w.process("A")
	long := strings.Repeat("é", 5000)
	a.alive(operate.Process{Run: "run-1", Group: "billing", Name: "a\x00b\xff", Host: long, Version: long, Problems: long, Every: time.Second})
	ps := h.processes("", "run-1")
	if len(ps) == 1 && (!strings.HasPrefix(ps[0].Name, "a") || !strings.HasPrefix(long, ps[0].Host) || ps[0].Host == "") {
		w.Errorf("the process is %+v", ps[0])
	}
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
		seen, err := epoch.FenceOf(a.w.ctx, a.sink, p)
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
