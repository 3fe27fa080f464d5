package sinktest

import (
	"context"
	"strconv"

	"github.com/epochfence/epochfence/epoch"
)

// unblocked are the histories of RunUnblocked. The other two need a capability of the sink.
var unblocked = []history{
	{"frozen with the transaction open, after its writes: the next owner claims and commits, the frozen one is refused", "R4 R12", frozenAfterWrites},
}

var unblockedTogether = []history{
	{"frozen with two partitions in one transaction: the other partition's next owner continues too", "R4 R12", frozenWithTwo},
}

var unblockedHeld = []history{
	{"frozen with a held claim, after its writes: the next owner claims and commits, the frozen one is refused", "R4 R12", heldFrozenAfterWrites},
	{"a held claim and a commit of the same partition pass beside each other, whichever begins first", "R4", heldBesideCommit},
}

func frozenAfterWrites(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	ta := a.claims(orders0, 5)
	ta.applies(2)
	var tb *tenure
	as := []epoch.Advance{ta.advance(2)}
	err := a.commit(as, func(ctx context.Context, tx any) error {
		if err := w.effects(ctx, tx, as[0], ta.Epoch); err != nil {
			return err
		}
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		tb.applies(3)
		return nil
	})
	w.wantRefused(err, "A thaws and commits")
	ta.refused(epoch.ErrStale, 2)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2-5@6")
}

func frozenWithTwo(w *world) {
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	t0, t1 := a.claims(orders0, 5), a.claims(orders1, 5)
	as := []epoch.Advance{t0.advance(2), t1.advance(2)}
	err := a.commit(as, func(ctx context.Context, tx any) error {
		for _, one := range as {
			if err := w.effects(ctx, tx, one, 5); err != nil {
				return err
			}
		}
		b.claims(orders1, 6).applies(1)
		return nil
	})
	w.wantRefused(err, "A thaws and commits")
	w.wantEffects(orders0, "")
	w.wantEffects(orders1, "0@6")
	again := a.claims(orders0, 7) // A still has orders/0, in doubt
	again.applies(2)
	w.wantEffects(orders0, "0-1@7")
}

func heldFrozenAfterWrites(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	ta := a.claims(orders0, 5)
	var tb *tenure
	err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
		if err := w.db.Append(ctx, tx, "outbox of A", "frozen"); err != nil {
			return err
		}
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		tb.applies(1)
		return nil
	})
	w.wantRefused(err, "A thaws and commits")
	tb.applies(1)
	w.wantList("outbox of A")
	w.wantEffects(orders0, "0-1@6")
}

func heldBesideCommit(w *world) {
	w.seed(orders0)
	ta := w.process("A").claims(orders0, 5)
	for n := range 3 {
		value := strconv.Itoa(n)
		err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
			if err := w.db.Append(ctx, tx, "outbox", value); err != nil {
				return err
			}
			ta.applies(1)
			return nil
		})
		if err != nil {
			w.Fatalf("a commit began and ended within a transaction that holds the claim: %v", err)
		}
		as := ta.advance(1)
		err = ta.commit([]epoch.Advance{as}, func(ctx context.Context, tx any) error {
			if err := w.effects(ctx, tx, as, ta.Epoch); err != nil {
				return err
			}
			return ta.writesHeld(value)
		})
		if err != nil {
			w.Fatalf("a transaction that holds the claim began and ended within a commit: %v", err)
		}
		ta.moves(as)
		ta.wantFence()
	}
	w.wantList("outbox", "0", "0", "1", "1", "2", "2")
	w.wantEffects(orders0, "0-5@5")
}
