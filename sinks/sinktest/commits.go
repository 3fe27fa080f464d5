package sinktest

import (
	"context"
	"errors"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

var commits = []history{
	{"an advance from another offset than the fence's is moved, by the right claim too", "R1 R3", movedAdvance},
	{"ownership is judged before the position", "R3", staleBeforeMoved},
	{"an advance of a partition without a fence is missing", "R3", missingAdvance},
	{"an advance backwards is refused", "R1", backwards},
	{"a commit without an advance is refused before apply", "R1", noAdvance},
	{"a partition that is given twice is refused before apply", "R1", advancedTwice},
	{"of two commits from one position, one is accepted", "R1", sameAdvanceTwice},
}

// whole are of sinks that commit all effects of a transaction with its positions.
var whole = []history{
	{"an advance that applies nothing commits what the handler wrote, under the fence", "R1", emptyAdvance},
	{"commit still in flight when the next claim comes: it lands before the claim or never", "R1 R4 R5", commitInFlight},
	cutOff,
}

var together = []history{
	{"several partitions commit together", "R1", partitionsTogether},
	{"of several partitions one is refused: nothing of any commits, and the first refused in key order is named", "R1 R3", oneOfSeveralRefused},
	{"transactions over the same partitions in opposite orders do not deadlock", "R4", oppositeOrders},
}

// bounded are the rules of sinks whose transactions are limited.
var bounded = []history{
	{"a transaction of more partitions than the sink's bound is refused before a call, and moves no fence", "R1", morePartitionsThanTheBound},
}

func morePartitionsThanTheBound(w *world) {
	a := w.process("A")
	var ts []*tenure
	var as []epoch.Advance
	for n := range a.sink.Facts().Partitions + 1 {
		p := epoch.Partition{Group: "billing", Topic: "orders", Number: int32(n)}
		w.seed(p)
		t := a.claims(p, 5)
		ts, as = append(ts, t), append(as, t.advance(1))
	}
	err := a.commit(as, func(context.Context, any) error {
		w.Error("a call ran")
		return nil
	})
	w.Wantf(errors.Is(err, epoch.ErrTooLarge), "err = %v, want ErrTooLarge", err)
	for _, t := range ts {
		t.wantFence()
		t.applies(1) // alone, it fits
	}
}

func movedAdvance(w *world) {
	w.seedAt(10, orders0)
	ta := w.process("A").claims(orders0, 5)
	ta.applies(2)
	for _, from := range []epoch.Offset{0, 10, 11, 13, 14, 1 << 40} {
		for _, messages := range []int{0, 1, 2} {
			elsewhere := *ta
			elsewhere.Next = from
			a := elsewhere.advance(messages)
			err := elsewhere.tries(messages)
			w.wantOnly(err, epoch.ErrMoved, "A applies from %d to %d where the fence is at 12", a.From, a.To)
			var moved *epoch.MovedError
			want := (epoch.MovedError{Partition: orders0, From: from, Next: 12})
			w.Wantf(errors.As(err, &moved) && *moved == want, "the refusal is %+v, want %+v", moved, want)
		}
	}
	ta.wantFence()
	w.wantEffects(orders0, "10-11@5")
}

func staleBeforeMoved(w *world) {
	ta := w.owned(5)
	tb := w.process("B").claims(orders0, 6)
	tb.applies(2)
	err := ta.tries(2)
	w.wantOnly(err, epoch.ErrStale, "A, stale, applies from an offset that is past")
	var stale *epoch.StaleError
	want := (epoch.StaleError{Partition: orders0, Ours: ta.Claim, Held: tb.Fence})
	w.Wantf(errors.As(err, &stale) && *stale == want, "the refusal is\n%+v, want\n%+v", stale, want)
	never := *tb
	never.Claim = epoch.ClaimID{}
	never.refused(epoch.ErrStale, 1) // the zero claim is never current

	// It is not the claim of an unclaimed fence either.
	w.seed(orders1)
	unclaimed := &tenure{process: ta.process, Fence: ta.process.reads(orders1)}
	unclaimed.refused(epoch.ErrStale, 1)
	w.wantEffects(orders0, "0-1@6")
	w.wantEffects(orders1, "")
}

func missingAdvance(w *world) {
	ta := w.owned(5)
	lost := *ta
	lost.Partition = orders1
	err := lost.tries(1)
	w.wantOnly(err, epoch.ErrMissing, "A applies where there is no fence")
	missing, ok := errors.AsType[*epoch.MissingError](err)
	w.Wantf(ok && missing.Partition == orders1, "the refusal is %#v; want a MissingError of %s", missing, orders1)
	w.wantEffects(orders1, "")
}

func backwards(w *world) {
	w.seedAt(10, orders0)
	ta := w.process("A").claims(orders0, 5)
	a := ta.advance(-1)
	err := ta.commit([]epoch.Advance{a}, func(ctx context.Context, tx any) error {
		return w.db.Append(ctx, tx, orders0.String(), "backwards")
	})
	w.Wantf(err != nil && !errors.Is(err, epoch.ErrInDoubt), "an advance from %d to %d: err = %v, want a refusal", a.From, a.To, err)
	ta.wantFence()
	w.wantEffects(orders0, "")
}

func noAdvance(w *world) {
	ta := w.owned(5)
	for _, none := range [][]epoch.Advance{nil, {}} {
		ta.refusedUncalled(none, "a commit without an advance")
	}
	ta.wantFence()
	w.wantEffects(orders0, "")
}

func advancedTwice(w *world) {
	w.seed(orders0, orders1)
	a := w.process("A")
	ta, other := a.claims(orders0, 5), a.claims(orders1, 5)
	first := ta.advance(1)
	second, nothing := first, first
	second.From, second.To = first.To, first.To+1
	nothing.From = nothing.To
	for _, twice := range [][]epoch.Advance{
		{first, first},
		{first, second},
		{second, first},
		{first, nothing},
		{first, other.advance(1), second},
	} {
		ta.refusedUncalled(twice, "a commit that advances orders/0 twice")
	}
	ta.wantFence()
	other.wantFence()
	w.wantEffects(orders0, "")
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

// refusedUncalled commits as. The sink must refuse it without calling apply and without doubt.
func (t *tenure) refusedUncalled(as []epoch.Advance, what string) {
	t.w.Helper()
	err := t.commit(as, func(ctx context.Context, tx any) error {
		t.w.Errorf("%s: apply was called", what)
		return t.w.db.Append(ctx, tx, t.Partition.String(), "without a fence")
	})
	is := class(err)
	t.w.Wantf(err != nil && len(is) == 0, "%s: err = %v, which is %q; want a refusal that is none of these", what, err, is)
}

func emptyAdvance(w *world) {
	ta := w.owned(5)
	ta.applies(1)
	for range 2 {
		err := ta.commit([]epoch.Advance{ta.advance(0)}, func(ctx context.Context, tx any) error {
			return w.db.Append(ctx, tx, "outbox", "relayed")
		})
		w.NoError(err)
		ta.wantFence()
	}
	w.process("B").claims(orders0, 6)
	err := ta.commit([]epoch.Advance{ta.advance(0)}, func(ctx context.Context, tx any) error {
		return w.db.Append(ctx, tx, "outbox", "relayed by a zombie")
	})
	w.wantOnly(err, epoch.ErrStale, "A, stale, applies nothing")
	w.wantList("outbox", "relayed", "relayed")
}

// applyAll commits some messages for each of several tenures, in one transaction of the first
// tenure's process.
func applyAll(messages int, ts ...*tenure) error {
	w := ts[0].w
	w.Helper()
	var as []epoch.Advance
	for _, t := range ts {
		as = append(as, t.advance(messages))
	}
	err := ts[0].commit(as, func(ctx context.Context, tx any) error {
		for i, a := range as {
			if err := w.effects(ctx, tx, a, ts[i].Epoch); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for i, t := range ts {
			t.moves(as[i])
		}
	}
	return err
}

func partitionsTogether(w *world) {
	w.seed(orders0, orders2)
	w.seedAt(5, orders1)
	a := w.process("A")
	t2, t0, t1 := a.claims(orders2, 7), a.claims(orders0, 5), a.claims(orders1, 6)
	for range 2 {
		w.NoError(applyAll(2, t2, t0, t1))
	}
	for _, t := range []*tenure{t0, t1, t2} {
		t.wantFence()
	}
	w.wantEffects(orders0, "0-3@5")
	w.wantEffects(orders1, "5-8@6")
	w.wantEffects(orders2, "0-3@7")
}

func oneOfSeveralRefused(w *world) {
	// The key order is B, _, a, é; many collations differ.
	var ps []epoch.Partition
	for _, topic := range []string{"B", "_", "a", "é"} {
		ps = append(ps, epoch.Partition{Group: "billing", Topic: topic})
	}
	a, b := w.process("A"), w.process("B")
	var ts []*tenure
	for _, p := range ps {
		w.seed(p)
		ts = append(ts, a.claims(p, 5))
	}
	refused := func(first epoch.Partition, want error, stale ...int) {
		w.Helper()
		for _, backward := range []bool{false, true} {
			given := slices.Clone(ts)
			if backward {
				slices.Reverse(given)
			}
			err := applyAll(1, given...)
			w.wantOnly(err, want, "A commits four partitions, of which %v are not its own", stale)
			var named epoch.Partition
			if e := (*epoch.StaleError)(nil); errors.As(err, &e) {
				named = e.Partition
			}
			if e := (*epoch.MovedError)(nil); errors.As(err, &e) {
				named = e.Partition
			}
			w.Mustf(named == first, "the refusal names %s, want the first in key order, %s: %v", named, first, err)
		}
		for _, p := range ps {
			w.wantEffects(p, "")
			f := b.reads(p)
			w.Mustf(f.Next == 0, "%s is at offset %d after a refused transaction", p, f.Next)
		}
	}
	b.claims(ps[3], 6)
	refused(ps[3], epoch.ErrStale, 3)
	b.claims(ps[1], 6)
	refused(ps[1], epoch.ErrStale, 1, 3)
	ts[0].Next = 4
	refused(ps[0], epoch.ErrMoved, 0, 1, 3)
	ts[0].Next = 0
	if err := applyAll(1, ts[2], ts[0]); err != nil { // A still holds the rest
		w.Fatal(err)
	}
}

func oppositeOrders(w *world) {
	const rounds = 20
	w.seed(orders0, orders1)
	a := w.process("A")
	t0, t1 := a.claims(orders0, 5), a.claims(orders1, 5)
	w.together(2, func(n int, a *process) {
		for done := 0; done < rounds; {
			as := []epoch.Advance{}
			for _, t := range []*tenure{t0, t1} {
				f, err := epoch.FenceOf(w.ctx, a.sink, t.Partition)
				if err != nil {
					w.Errorf("read: %v", err)
					return
				}
				as = append(as, (&tenure{Fence: f}).advance(1))
			}
			if n == 1 {
				slices.Reverse(as)
			}
			err := a.sink.Commit(w.ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx any) error {
				for _, one := range as {
					if err := w.effects(ctx, tx, one, 5); err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil {
				done++
			} else if !w.isOnly(err, epoch.ErrMoved, "commit %v", as) {
				return
			}
		}
	})
	w.wantEffects(orders0, "0-39@5")
	w.wantEffects(orders1, "0-39@5")
}

func sameAdvanceTwice(w *world) {
	ta := w.owned(5)
	for range 5 {
		as := []epoch.Advance{ta.advance(1)}
		accepted := make(chan struct{}, 4)
		w.together(4, func(_ int, a *process) {
			err := a.sink.Commit(w.ctx, as, epoch.TxOptions{}, ta.writes(as[0], nil))
			if err == nil {
				accepted <- struct{}{}
				return
			}
			w.isOnly(err, epoch.ErrMoved, "commit from %d, again", as[0].From)
		})
		w.Mustf(len(accepted) == 1, "%d commits from offset %d were accepted", len(accepted), as[0].From)
		ta.moves(as[0])
		ta.wantFence()
	}
	w.wantEffects(orders0, "0-4@5")
}
