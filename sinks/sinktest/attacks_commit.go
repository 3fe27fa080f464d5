package sinktest

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

func rewound(w *world) {
	w.seedAt(10, orders0)
	zombie := w.process("A").claims(orders0, 5)
	zombie.applies(2)

	// An operator sets the position back to 8 by hand, and leaves the claim.
	after := w.elsewhere()
	after.seedAt(8, orders0)
	b := after.process("B")
	byHand, err := b.sink.Claim(w.ctx, b.reads(orders0), epoch.Claim{Lease: lease(orders0, 5, "A"), ID: zombie.Claim})
	w.NoError(err)
	zombie.process = after.process("A")
	zombie.refused(epoch.ErrMoved, 2) // the claim is right, the position is not
	zombie.refused(epoch.ErrMoved, 0)

	again := b.claims(orders0, 6)
	w.Mustf(again.Next == byHand.Next, "B continues at offset %d, want %d", again.Next, byHand.Next)
	again.applies(4)
	zombie.refused(epoch.ErrStale, 2) // now the claim is wrong, although the position would be right
	after.wantEffects(orders0, "8-11@6")
}

func ackLostLanded(w *world) {
	ta := w.owned(5)
	a := ta.process
	before := *ta
	ta.applies(3) // A does not learn of it

	before.refused(epoch.ErrMoved, 3) // sent again, as a client library might do

	again := a.claims(orders0, 5)
	w.Mustf(again.Next == 3, "A continues at offset %d, want 3", again.Next)
	again.applies(1)
	before.refused(epoch.ErrStale, 3)
	w.wantEffects(orders0, "0-2@5 3@6")
}

func ackLostNotLanded(w *world) {
	ta := w.owned(5)
	a := ta.process
	cut := errors.New("connection lost")
	as := []epoch.Advance{ta.advance(3)}
	err := a.commit(as, ta.writes(as[0], func() error { return cut }))
	w.Mustf(errors.Is(err, cut), "err = %v, want the handler's own", err)
	again := a.claims(orders0, 5)
	w.Mustf(again.Next == 0, "A continues at offset %d, want 0", again.Next)
	again.applies(3)
	ta.refused(epoch.ErrStale, 3)
	w.wantEffects(orders0, "0-2@6")
}

// commitInFlight lets A's commit and B's claim meet at a random moment, twenty times. Either may
// come first, but one must.
func commitInFlight(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	story := []string{}
	tb := b.claims(orders0, 1)
	for round := range 20 {
		ta := a.claims(orders0, int64(2*round+2))
		w.Mustf(ta.Next == tb.Next, "round %d: A continues at offset %d, want %d", round, ta.Next, tb.Next)
		written, committed := make(chan struct{}), make(chan error, 1)
		go func() {
			as := []epoch.Advance{ta.advance(1)}
			once := sync.OnceFunc(func() { close(written) })
			defer once() // in case the handler is never called
			committed <- a.sink.Commit(w.ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx any) error {
				defer once()
				return w.effects(ctx, tx, as[0], ta.Epoch)
			})
		}()
		<-written
		tb = b.claims(orders0, int64(2*round+3))
		switch err := <-committed; {
		case err == nil && tb.Next == ta.Next+1:
			story = append(story, effect(ta.Next, ta.Epoch))
		case err == nil:
			w.Fatalf("round %d: A's commit was acknowledged, but B's claim found offset %d, want %d", round, tb.Next, ta.Next+1)
		case tb.Next == ta.Next:
			w.wantRefused(err, "A's commit after B's claim")
		case !errors.Is(err, epoch.ErrInDoubt):
			w.Fatalf("round %d: A's commit failed with %v, but B's claim found it landed", round, err)
		default:
			story = append(story, effect(ta.Next, ta.Epoch))
		}
		tb.applies(1)
		story = append(story, effect(tb.Next-1, tb.Epoch))
	}
	w.wantList(orders0.String(), story...)
}

func frozenBeforeWrites(w *world) {
	ta := w.owned(5)
	a := ta.process
	b := w.process("B")
	ta.applies(2)
	var tb *tenure
	as := []epoch.Advance{ta.advance(2)}
	err := a.commit(as, func(ctx context.Context, tx any) error {
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		tb.applies(3)
		// A thaws without knowing.
		return w.effects(ctx, tx, as[0], ta.Epoch)
	})
	w.wantRefused(err, "A thaws and commits")
	ta.refused(epoch.ErrStale, 2)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2-5@6")
}

func frozenBeforeSwap(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	a.claims(orders0, 5).applies(2)
	// A claims again, in doubt. A source whose generations are not ordered confirms its lease
	// again, and then A is frozen.
	seen := a.reads(orders0)
	tb := b.claims(orders0, 6)
	tb.applies(2)
	for _, generation := range []int64{5, 6, 7, 1000} {
		_, err := a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, generation, "A")))
		w.wantOnly(err, epoch.ErrStale, "A thaws and swaps with generation %d", generation)
	}
	tb.wantFence()
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2-4@6")
}

func markKept(w *world) {
	ta := w.owned(5)
	a := ta.process
	f := a.reads(orders0)
	w.Wantf(f.Mark == epoch.NoMark, "mark %d before any message, want none", f.Mark)
	for _, mark := range []epoch.Mark{0, 7, epoch.NoMark, math.MaxInt64} {
		as := ta.advance(1)
		as.Mark = mark
		w.NoError(a.commit([]epoch.Advance{as}, func(context.Context, any) error { return nil }))
		ta.moves(as)
		ta.wantFence()
	}
	ta.applies(0) // applies no message, so that there is no later one
	ta.wantFence()
	tb := w.process("B").claims(orders0, 6)
	w.Wantf(tb.Mark == math.MaxInt64, "mark %d after the next claim, want %d", tb.Mark, int64(math.MaxInt64))
}

func poison(w *world) {
	w.seed(orders0, orders1)
	a := w.process("A")
	t0, t1 := a.claims(orders0, 5), a.claims(orders1, 5)
	t0.applies(1)
	bad := errors.New("cannot be applied")
	as := a.fit([]epoch.Advance{t0.advance(3), t1.advance(2)})
	err := a.commit(as, func(ctx context.Context, tx any) error {
		for i, one := range as {
			if i == len(as)-1 {
				one.To-- // the poison message
			}
			if err := w.effects(ctx, tx, one, t0.Epoch); err != nil {
				return err
			}
		}
		return bad
	})
	w.Mustf(errors.Is(err, bad) && len(class(err)) == 0, "err = %v, want the handler's own", err)
	t0.wantFence()
	t1.wantFence()
	w.wantEffects(orders0, "0@5")
	w.wantEffects(orders1, "")
	t0.applies(1) // the messages before the poison message
	t1.applies(1)
	w.wantEffects(orders0, "0-1@5")
	w.wantEffects(orders1, "0@5")
}

func handlerCommits(w *world) {
	if w.db.Commit == nil {
		w.Log("nothing to show: TX gives handlers no way")
		return
	}
	w.seed(orders0)
	a := w.process("A")
	for name, apply := range map[string]func(ctx context.Context, tx any) error{
		"after a write": func(ctx context.Context, tx any) error {
			if err := w.db.Append(ctx, tx, "escaped", "before"); err != nil {
				return err
			}
			return w.db.Commit(ctx, tx)
		},
		"and hides what the sink answers": func(ctx context.Context, tx any) error {
			_ = w.db.Append(ctx, tx, "escaped", "before")
			_ = w.db.Commit(ctx, tx)
			_ = w.db.Append(ctx, tx, "escaped", "after")
			return nil
		},
	} {
		ta := a.claims(orders0, 5)
		err := ta.runs(w.ctx, ta.advance(2), apply)
		if errors.Is(err, epoch.ErrTxControl) { // the sink has refused to send it
			w.wantList("escaped")
		} else {
			w.wantOnly(err, epoch.ErrTxEndedByHandler, "A's handler commits by itself %s", name)
		}
		ta.wantFence()
		ta.applies(1) // the sink still works
	}
}
