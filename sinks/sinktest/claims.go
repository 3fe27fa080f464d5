package sinktest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

var claims = []history{
	{"a partition without a fence is missing, to a reader and to a claim", "R3", missingFence},
	{"a fence is read back as it was claimed, by every process", "R1", readBack},
	{"a look at many partitions shows each fence that is there as last committed", "R5", lookAtMany},
	{"the epoch is the lease's generation where that is higher than every epoch before, otherwise the last plus one", "R1", epochRule},
	{"a claim starts above the epoch that another system has seen, and so do those after it", "R1", claimAbove},
	{"a refused claim says who holds the fence", "R3", staleClaimDetails},
	{"a lease whose generation is not positive grants nothing", "R2", noLease},
	{"a claim id that is not fresh is refused", "R1", claimIDNotFresh},
	{"no claim takes an epoch that is out of reach", "R1", epochsOutOfReach},
	{"no claim takes the name of an operator", "R1", claimAsAnOperator},
	{"of many claims from one reading, one is accepted", "R2", oneOfManyClaims},
	{"epochs rise strictly under concurrent claimers, and none is issued twice", "R1", concurrentClaimers},
	{"claiming moves no position", "R8", claimKeepsPosition},
	{"the first claim of a fence may adopt a position, and no other", "R8", adopting},
	{"of many first claims that adopt a position, one does", "R8", oneAdopts},
	{"a fence says whether anything before its position was applied", "R9", saysWhetherApplied},
}

func missingFence(w *world) {
	w.seed(orders1)
	a := w.process("A")
	for name, err := range map[string]error{
		"read": func() error { _, err := epoch.FenceOf(w.ctx, a.sink, orders0); return err }(),
		"claim": func() error {
			_, err := a.sink.Claim(w.ctx, epoch.Fence{Origin: origin(orders0), Mark: epoch.NoMark}, epoch.NewClaim(lease(orders0, 5, "A")))
			return err
		}(),
	} {
		w.wantOnly(err, epoch.ErrMissing, "%s of a fence that is not there", name)
		missing, ok := errors.AsType[*epoch.MissingError](err)
		w.Wantf(ok && missing.Partition == orders0, "%s: the refusal is %#v; want a MissingError of %s", name, missing, orders0)
	}
	if _, err := epoch.FenceOf(w.ctx, a.sink, orders0); !errors.Is(err, epoch.ErrMissing) {
		w.Errorf("a refused claim made a fence: err = %v", err)
	}
}

func readBack(w *world) {
	w.seedAt(3, orders0)
	a, b := w.process("A"), w.process("B")
	want := epoch.Fence{Origin: origin(orders0), Next: 3, Mark: epoch.NoMark}
	f := b.reads(orders0)
	w.Mustf(f == want, "the seeded fence is\n%+v, want\n%+v", f, want)
	ta := a.claims(orders0, 5)
	ta.applies(2)
	ta.wantFence()
	tb := &tenure{process: b, Fence: ta.Fence}
	tb.wantFence()
}

func lookAtMany(w *world) {
	look := func(a *process, ps ...epoch.Partition) epoch.Fences {
		w.Helper()
		got, err := a.sink.Look(w.ctx, ps)
		w.NoErrorf(err, "%s looks at %v", a.name, ps)
		return got
	}
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	ta := a.claims(orders1, 5)
	ta.applies(2)
	absent := orders0
	absent.Group = "another group"
	got := look(b, orders0, absent, orders1, orders2)
	want := (epoch.Fences{orders0: b.reads(orders0), orders1: ta.Fence})
	w.Wantf(maps.Equal(got, want), "a look at four partitions, two of which have a fence, shows\n%+v, want\n%+v", got, want)
	if got := look(b); len(got) != 0 {
		w.Errorf("a look at none shows %+v", got)
	}

	many := []epoch.Partition{orders1}
	for n := range int32(3000) {
		p := orders1
		p.Topic, p.Number = "others", n
		many = append(many, p)
	}
	ta.applies(1)
	if got, want := look(b, many...), (epoch.Fences{orders1: ta.Fence}); !maps.Equal(got, want) {
		w.Errorf("a look at %d partitions shows\n%+v, want\n%+v", len(many), got, want)
	}
}

func epochRule(w *world) {
	w.seed(orders0)
	a := w.process("A")
	for _, c := range []struct {
		generation int64
		want       epoch.Epoch
	}{{1, 1}, {2, 2}, {2, 3}, {1, 4}, {4, 5}, {6, 6}, {1_000_000_000_000, 1_000_000_000_000}, {1, 1_000_000_000_001}} {
		ta := a.claims(orders0, c.generation)
		ta.wantEpoch(c.want)
		ta.wantFence()
	}
}

func claimAbove(w *world) {
	w.seed(orders0)
	a := w.process("A")
	for _, c := range []struct {
		generation int64
		above      epoch.Epoch
		want       epoch.Epoch
	}{{5, 0, 5}, {5, 9, 10}, {11, 9, 11}, {1, 9, 12}, {1, 12, 13}, {1, 0, 14}, {15, 14, 15}, {1, 15 + epoch.MaxStep, 16 + epoch.MaxStep}} {
		bid := epoch.NewClaim(lease(orders0, c.generation, "A"))
		bid.Above = c.above
		f, err := a.sink.Claim(w.ctx, a.reads(orders0), bid)
		w.NoErrorf(err, "A claims above %d", c.above)
		ta := &tenure{process: a, Fence: f}
		ta.wantEpoch(c.want)
		ta.wantFence()
		ta.applies(1)
	}
}

func staleClaimDetails(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	seen := a.reads(orders0)
	tb := b.claims(orders0, 6)
	tb.applies(2)
	c := epoch.NewClaim(lease(orders0, 7, "A"))
	_, err := a.sink.Claim(w.ctx, seen, c)
	var stale *epoch.StaleError
	w.Mustf(errors.As(err, &stale), "err = %v, want a StaleError", err)
	if want := (epoch.StaleError{Partition: orders0, Ours: c.ID, Held: tb.Fence}); *stale != want {
		w.Errorf("the refusal is\n%+v, want\n%+v", *stale, want)
	}
}

func noLease(w *world) {
	w.seed(orders0)
	a := w.process("A")
	for _, generation := range []int64{0, -1, math.MinInt64} {
		_, err := a.sink.Claim(w.ctx, a.reads(orders0), epoch.NewClaim(lease(orders0, generation, "A")))
		w.wantOnly(err, epoch.ErrNoLease, "A claims under generation %d", generation)
	}
	want := epoch.Fence{Origin: origin(orders0), Mark: epoch.NoMark}
	f := a.reads(orders0)
	w.Wantf(f == want, "the fence is\n%+v, want\n%+v", f, want)
}

func claimIDNotFresh(w *world) {
	ta := w.owned(5)
	a := ta.process
	for name, id := range map[string]epoch.ClaimID{"the one in the fence": ta.Claim, "zero": {}} {
		_, err := a.sink.Claim(w.ctx, ta.Fence, epoch.Claim{Lease: lease(orders0, 6, "A"), ID: id})
		w.Wantf(err != nil, "a claim whose id is %s was accepted", name)
		ta.wantFence()
	}
}

func epochsOutOfReach(w *world) {
	w.seed(orders0)
	a := w.process("A")
	ta := a.claims(orders0, int64(epoch.MaxStep)+1)
	ta.wantEpoch(epoch.MaxStep + 1)
	ta.applies(1)
	for _, c := range []struct {
		generation int64
		above      epoch.Epoch
	}{{math.MaxInt64, 0}, {1, math.MaxInt64}, {1, math.MaxInt64 - 1}, {1, ta.Epoch + epoch.MaxStep + 1}, {int64(ta.Epoch+epoch.MaxStep) + 2, 0}} {
		bid := epoch.NewClaim(lease(orders0, c.generation, "A"))
		bid.Above = c.above
		f, err := a.sink.Claim(w.ctx, a.reads(orders0), bid)
		w.Mustf(err != nil, "after epoch %d, generation %d and above %d, epoch %d was issued", ta.Epoch, c.generation, c.above, f.Epoch)
	}
	ta.applies(1)
	ta.wantFence()
}

func claimAsAnOperator(w *world) {
	ta := w.owned(5)
	a := ta.process
	_, err := a.sink.Claim(w.ctx, ta.Fence, epoch.NewClaim(lease(orders0, 6, epoch.ReservedOwner+"anna")))
	w.Wantf(err != nil, "a claim was made in the name of an operator")
	ta.wantFence()
}

func oneOfManyClaims(w *world) {
	w.seed(orders0)
	for round := range 5 {
		seen := w.process("reader").reads(orders0)
		won := make(chan epoch.Fence, 4)
		w.together(4, func(n int, a *process) {
			f, err := a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, int64(round+1), a.name)))
			if err == nil {
				won <- f
				return
			}
			w.isOnly(err, epoch.ErrStale, "process %d claims", n)
		})
		w.Mustf(len(won) == 1, "round %d: %d claims from one reading were accepted", round, len(won))
		(&tenure{process: w.process("reader"), Fence: <-won}).wantFence()
	}
}

func concurrentClaimers(w *world) {
	w.seed(orders0)
	const each = 10
	var mu sync.Mutex
	var issued []epoch.Epoch
	w.together(4, func(n int, a *process) {
		for accepted := 0; accepted < each; {
			seen, err := epoch.FenceOf(w.ctx, a.sink, orders0)
			if err != nil {
				w.Errorf("read: %v", err)
				return
			}
			f, err := a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, int64(n+1), a.name)))
			if errors.Is(err, epoch.ErrStale) {
				continue
			}
			if err != nil {
				w.Errorf("claim: %v", err)
				return
			}
			w.Wantf(f.Epoch > seen.Epoch, "epoch %d follows %d", f.Epoch, seen.Epoch)
			accepted++
			mu.Lock()
			issued = append(issued, f.Epoch)
			mu.Unlock()
		}
	})
	slices.Sort(issued)
	if n := len(slices.Compact(slices.Clone(issued))); n != 4*each {
		w.Errorf("%d claims were accepted under %d epochs: %v", 4*each, n, issued)
	}
}

func claimKeepsPosition(w *world) {
	w.seedAt(100, orders0)
	a := w.process("A")
	ta := a.claims(orders0, 5)
	seen := a.reads(orders0)
	ta.applies(3) // between read and swap
	tb := w.process("B").swaps(seen, lease(orders0, 6, "B"))
	w.Wantf(tb.Next == 103 && tb.Mark == ta.Mark, "the claim's fence is at offset %d, mark %d; want 103 and %d", tb.Next, tb.Mark, ta.Mark)
	tb.wantFence()
}

func adopting(w *world) {
	w.seedAt(3, orders0, orders1)
	a := w.process("A")
	adopt := func(seen epoch.Fence, at epoch.Offset) (epoch.Fence, error) {
		c := epoch.NewClaim(lease(seen.Partition, 5, "A"))
		c.Adopt = &epoch.Position{Offset: at, Mark: 7}
		return a.sink.Claim(w.ctx, seen, c)
	}
	for _, p := range []epoch.Partition{orders0, orders1} {
		at := map[epoch.Partition]epoch.Offset{orders0: 100, orders1: 1}[p]
		if _, err := adopt(a.reads(p), -1); err == nil {
			w.Errorf("%s adopted a negative offset", p)
		}
		f, err := adopt(a.reads(p), at)
		w.NoErrorf(err, "A claims %s and adopts %d", p, at)
		ta := &tenure{process: a, Fence: f}
		w.Wantf(f.Next == at && f.Mark == 7 && f.Applied, "the claim that adopts offset %d, mark 7, returned\n%+v", at, f)
		ta.wantFence()
		for _, again := range []epoch.Offset{at, 500} {
			f, err := adopt(a.reads(p), again)
			w.Wantf(err != nil, "a fence that was claimed before adopted %d: %+v", again, f)
			ta.wantFence()
		}
		ta.applies(2)
		ta.wantFence()
	}
}

func oneAdopts(w *world) {
	for round := range 5 {
		p := epoch.Partition{Group: fmt.Sprintf("group-%d", round), Topic: "orders"}
		w.seed(p)
		seen := w.process("reader").reads(p)
		won := make(chan epoch.Fence, 4)
		w.together(4, func(n int, a *process) {
			c := epoch.NewClaim(lease(p, int64(n+1), a.name))
			c.Adopt = &epoch.Position{Offset: epoch.Offset(100 + n), Mark: epoch.Mark(n)}
			f, err := a.sink.Claim(w.ctx, seen, c)
			if err != nil {
				w.isOnly(err, epoch.ErrStale, "process %d claims", n)
				return
			}
			if f.Next != c.Adopt.Offset || f.Mark != c.Adopt.Mark {
				w.Errorf("round %d: the claim that adopts %d is at %d, mark %d", round, c.Adopt.Offset, f.Next, f.Mark)
			}
			won <- f
		})
		w.Mustf(len(won) == 1, "round %d: %d claims from one reading were accepted", round, len(won))
		(&tenure{process: w.process("reader"), Fence: <-won}).wantFence()
	}
}

func saysWhetherApplied(w *world) {
	w.seedAt(3, orders0)
	a, b := w.process("A"), w.process("B")
	want := func(applied bool, when string) {
		w.Helper()
		f := b.reads(orders0)
		w.Wantf(f.Applied == applied, "%s the fence says %v: %+v", when, f.Applied, f)
	}
	want(false, "seeded,")
	ta := a.claims(orders0, 5)
	want(false, "claimed,")
	ta.applies(0)
	want(false, "after a transaction that applied nothing")
	ta.applies(2)
	want(true, "after one that did")
	ta.applies(0)
	b.claims(orders0, 6)
	want(true, "claimed again,")
}

// together runs n processes concurrently, the same at each call. do must not call Fatalf.
func (w *world) together(n int, do func(n int, a *process)) {
	w.Helper()
	var wg sync.WaitGroup
	for i := len(w.crowd); i < n; i++ { // a connection costs a server more than a round
		w.crowd = append(w.crowd, w.process(string(rune('A'+i))))
	}
	for i, a := range w.crowd[:n] {
		wg.Go(func() { do(i, a) })
	}
	wg.Wait()
	if w.Failed() {
		w.FailNow()
	}
}
