package sinktest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// held are the histories of claim-only transactions.
var held = []history{
	{"a held claim commits what was written, and leaves the fence as it is", "R1", heldCommits},
	{"a held claim commits wherever the position is, also where it moves meanwhile", "R1", heldWhileThePositionMoves},
	{"a held claim that another one has replaced is stale, and so is none", "R1 R3", heldStale},
	{"a held claim of a partition without a fence is missing", "R3", heldMissing},
	{"a held claim is looked at last: replaced before the first write, the transaction is refused", "R4", heldReplacedBeforeWrites},
	{"a held claim and the next one in any order: what commits is there when the next claim is, or never", "R1 R4 R5", heldInFlight},
	{"a held claim that the handler commits by itself is reported", "R3", underHeldClaim(handlerCommits)},
}

// underHeldClaims repeats histories of handlers in claim-only transactions.
func underHeldClaims(hs []history) []history {
	var all []history
	for _, h := range hs {
		all = append(all, history{h.claim + ", under a held claim", h.rules, underHeldClaim(h.play)})
	}
	return all
}

func underHeldClaim(play func(w *world)) func(w *world) {
	return func(w *world) {
		w.held = true
		play(w)
	}
}

func heldCommits(w *world) {
	w.seedAt(10, orders0)
	ta := w.process("A").claims(orders0, 5)
	for _, value := range []string{"before any message", "and again"} {
		w.NoError(ta.writesHeld(value))
		ta.wantFence()
	}
	ta.applies(2)
	w.NoError(ta.writesHeld("after two"))
	w.NoErrorf(ta.holds(w.ctx, func(context.Context, any) error { return nil }), "nothing is written")
	ta.wantFence()
	w.wantList("outbox", "before any message", "and again", "after two")
}

func heldWhileThePositionMoves(w *world) {
	ta := w.owned(5)
	for n := range 3 {
		err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
			ta.applies(n) // the first of these moves nothing
			return w.db.Append(ctx, tx, "outbox", strconv.Itoa(n))
		})
		w.NoErrorf(err, "the position has moved by %d under the same claim", n)
		ta.wantFence()
	}
	w.wantList("outbox", "0", "1", "2")
	w.wantEffects(orders0, "0-2@5")
}

func heldStale(w *world) {
	w.seed(orders0, orders1)
	ta := w.process("A").claims(orders0, 5)
	tb := w.process("B").claims(orders0, 6)
	refused := func(t *tenure, held epoch.Fence, why string) {
		w.Helper()
		err := t.writesHeld(why)
		w.wantOnly(err, epoch.ErrStale, "%s: a transaction that holds %s", why, t.Claim)
		var stale *epoch.StaleError
		want := (epoch.StaleError{Partition: t.Partition, Ours: t.Claim, Held: held})
		w.Wantf(errors.As(err, &stale) && *stale == want, "%s: the refusal is\n%+v, want\n%+v", why, stale, want)
	}
	refused(ta, tb.Fence, "replaced")
	tb.applies(2)
	refused(ta, tb.Fence, "replaced, and the position has moved")
	w.NoError(tb.writesHeld("the owner's"))
	none := *tb
	none.Claim = epoch.ClaimID{}
	refused(&none, tb.Fence, "no claim")
	unclaimed := &tenure{process: ta.process, Fence: ta.process.reads(orders1)}
	refused(unclaimed, unclaimed.Fence, "no claim, on a fence that has none")
	again := ta.process.claims(orders0, 7) // the same owner under another claim
	refused(ta, again.Fence, "replaced by a claim of its own")
	w.wantList("outbox", "the owner's")
	again.wantFence()
}

func heldMissing(w *world) {
	ta := w.owned(5)
	lost := *ta
	lost.Partition = orders1
	err := lost.writesHeld("without a fence")
	w.wantOnly(err, epoch.ErrMissing, "A holds a claim where there is no fence")
	missing, ok := errors.AsType[*epoch.MissingError](err)
	w.Wantf(ok && missing.Partition == orders1, "the refusal is %#v; want a MissingError of %s", missing, orders1)
	w.wantList("outbox")
}

func heldReplacedBeforeWrites(w *world) {
	ta := w.owned(5)
	b := w.process("B")
	var tb *tenure
	err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		// A thaws without knowing.
		return w.db.Append(ctx, tx, "outbox", "a zombie's")
	})
	w.wantRefused(err, "A thaws and commits")
	w.wantOnly(ta.writesHeld("a zombie's, later"), epoch.ErrStale, "A, once more")
	w.NoError(tb.writesHeld("the owner's"))
	w.wantList("outbox", "the owner's")
}

// heldInFlight lets A's commit and B's claim meet at a random moment, twenty times. After B has
// claimed, A must commit nothing more than B then finds.
func heldInFlight(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	for round := range 20 {
		ta := a.claims(orders0, int64(2*round+1))
		value := strconv.Itoa(round)
		written, committed := make(chan struct{}), make(chan error, 1)
		go func() {
			once := sync.OnceFunc(func() { close(written) })
			defer once() // in case the handler is never called
			h := epoch.Hold{Partition: orders0, Claim: ta.Claim}
			committed <- epoch.CommitHeld(w.ctx, a.sink, h, epoch.TxOptions{}, func(ctx context.Context, tx any) error {
				defer once()
				return w.db.Append(ctx, tx, "outbox", value)
			})
		}()
		<-written
		b.claims(orders0, int64(2*round+2))
		found, err := w.db.List(w.ctx, "outbox")
		w.NoError(err)
		landed := slices.Contains(found, value)
		switch err := <-committed; {
		case err == nil && !landed:
			w.Fatalf("round %d: A's commit was acknowledged, but B did not find it once it had claimed", round)
		case err == nil || landed && errors.Is(err, epoch.ErrInDoubt):
		case landed:
			w.Fatalf("round %d: A's commit failed with %v, but B found it", round, err)
		default:
			w.wantRefused(err, "A's commit after B's claim")
		}
		w.wantList("outbox", found...)
	}
}
