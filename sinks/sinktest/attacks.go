package sinktest

import (
	"errors"

	"github.com/epochfence/epochfence/epoch"
)

// attacks are histories that double or lose effects in other systems. The lease generations stand
// for the source's part in each.
var attacks = []history{
	{"stale writer: whoever lost its claim commits nothing", "R1 R3", staleWriter},
	{"late claimer: a claim from a fence read before another claim is refused", "R2", lateClaimer},
	{"claim after release: a commit from an earlier tenure of the same owner at the same position is refused", "R1", claimAfterRelease},
	{"static member swap: two owners of one generation get two epochs, and the first is stale", "R1", staticMemberSwap},
	{"same owner, same generation, regranted: the earlier claim is stale", "R1", regranted},
	{"group deleted: generations restart at 1, epochs continue", "R1", groupDeleted},
	{"group expired: positions stay, and low generations do not lower the epoch", "R9", groupExpired},
	{"bucket recreated: revisions restart at 1 under a live claim, epochs continue", "R1", bucketRecreated},
	{"bucket restored: a revision granted twice is two epochs", "R1", bucketRestored},
	{"rewind with a live zombie: an advance from beyond the rewound position is moved", "R1", rewound},
	{"lost commit acknowledgement, landed: claiming again skips what is committed", "R5", ackLostLanded},
	{"lost commit acknowledgement, not landed: claiming again repeats what is not", "R5", ackLostNotLanded},
	{"frozen with the transaction open, before its first write: the next owner continues, the frozen one is refused", "R4", frozenBeforeWrites},
	{"frozen between confirm and swap: the swap is refused, whatever its generation", "R2", frozenBeforeSwap},
	{"retained partition: a claim outlives the generations that pass meanwhile", "R7", retained},
	{"sink restored from backup: epochs catch up with the source, and the lost claims are stale", "R1", restoredFromBackup},
	{"sink that went back: its refusals and a look tell it from a later claim", "R5 R6", wentBack},
	{"topic deleted and recreated: a claim for another log is refused", "R10", logChanged},
	{"truncated log: the fence remembers the mark of the last message applied", "R10", markKept},
	{"poison message in the middle: everything of the transaction is rolled back", "R1", poison},
	{"handler that commits by itself: reported, and the fence does not move", "R3", handlerCommits},
	{"two groups on one table do not see each other", "R9", twoGroups},
	{"two deployments on one group: the second is refused", "R2", twoDeployments},
}

func staleWriter(w *world) {
	ta := w.owned(5)
	b := w.process("B")
	ta.wantEpoch(5)
	ta.applies(3)
	tb := b.claims(orders0, 6)
	tb.wantEpoch(6)
	ta.refused(epoch.ErrStale, 2)
	tb.applies(2)
	ta.refused(epoch.ErrStale, 2)
	ta.refused(epoch.ErrStale, 0)
	tb.applies(1)
	w.wantEffects(orders0, "0-2@5 3-5@6")
	tb.wantFence()
}

func lateClaimer(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	seen := a.reads(orders0) // and A's lease is confirmed: generation 5
	tb := b.claims(orders0, 6)
	_, err := a.sink.Claim(w.ctx, seen, epoch.NewClaim(lease(orders0, 5, "A")))
	w.wantOnly(err, epoch.ErrStale, "A claims late")
	tb.wantFence()
	tb.applies(3)
	w.wantEffects(orders0, "0-2@6")
}

func claimAfterRelease(w *world) {
	w.seed(orders0)
	a, b := w.process("A"), w.process("B")
	first := a.claims(orders0, 5)
	first.applies(3)
	b.claims(orders0, 6) // applies nothing, and releases
	second := a.claims(orders0, 7)
	first.refused(epoch.ErrStale, 2) // the same owner and position as second
	second.applies(2)
	first.refused(epoch.ErrStale, 2)
	w.wantEffects(orders0, "0-2@5 3-4@7")
}

func staticMemberSwap(w *world) {
	w.seed(orders0)
	// Both processes have group.instance.id "worker-1".
	a, b := w.process("worker-1"), w.process("worker-1")
	ta := a.claims(orders0, 5)
	ta.applies(2)
	tb := b.claims(orders0, 5)
	tb.wantEpoch(6)
	ta.refused(epoch.ErrStale, 2)
	tb.applies(2)
	// Generation 6 is not above the epoch; generation 8 is.
	tc := a.claims(orders0, 6)
	tc.wantEpoch(7)
	tb.refused(epoch.ErrStale, 1)
	tc.applies(1)
	td := b.claims(orders0, 8)
	td.wantEpoch(8)
	td.applies(1)
	w.wantEffects(orders0, "0-1@5 2-3@6 4@7 5@8")
}

func regranted(w *world) {
	w.seed(orders0)
	a := w.process("A")
	first := a.claims(orders0, 5)
	first.applies(2)
	second := a.claims(orders0, 5)
	second.wantEpoch(6)
	first.refused(epoch.ErrStale, 2)
	second.applies(2)
	w.wantEffects(orders0, "0-1@5 2-3@6")
}

func groupDeleted(w *world) {
	ta := w.owned(41)
	a := ta.process
	b := w.process("B")
	ta.applies(2)
	tb := b.claims(orders0, 1)
	tb.wantEpoch(42)
	tb.applies(1)
	ta.refused(epoch.ErrStale, 2)
	tc := a.claims(orders0, 2)
	tc.wantEpoch(43)
	tb.refused(epoch.ErrStale, 1)
	tc.applies(1)
	w.wantEffects(orders0, "0-1@41 2@42 3@43")
}

func groupExpired(w *world) {
	ta := w.owned(9)
	ta.applies(4)
	// No member for a week: the source forgets the group, but the sink does not. A new process
	// finds the fence, and seeding changes nothing.
	w.seedAt(0, orders0)
	b := w.process("B")
	for generation, e := int64(1), epoch.Epoch(10); generation <= 3; generation, e = generation+1, e+1 {
		tb := b.claims(orders0, generation)
		tb.wantEpoch(e)
		tb.applies(1)
	}
	ta.refused(epoch.ErrStale, 1)
	w.wantEffects(orders0, "0-3@9 4@10 5@11 6@12")
}

func bucketRecreated(w *world) {
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	ta0, ta1 := a.claims(orders0, 130), a.claims(orders1, 131)
	ta0.applies(2)
	ta1.applies(2)
	// The new bucket counts both partitions' revisions from 1, while A still runs.
	tb0 := b.claims(orders0, 1)
	tb0.wantEpoch(131)
	ta1.applies(1) // nobody has claimed orders1 again yet
	tb1 := b.claims(orders1, 2)
	tb1.wantEpoch(132)
	ta0.refused(epoch.ErrStale, 1)
	ta1.refused(epoch.ErrStale, 1)
	tb0.applies(1)
	tb1.applies(1)
	w.wantEffects(orders0, "0-1@130 2@131")
	w.wantEffects(orders1, "0-2@131 3@132")
}

func bucketRestored(w *world) {
	w.seed(orders0)
	a, b, c := w.process("A"), w.process("B"), w.process("C")
	a.claims(orders0, 6).applies(1)
	tb := b.claims(orders0, 7)
	tb.applies(1)
	// The bucket is restored as of revision 6, and grants 7 again.
	tc := c.claims(orders0, 7)
	tc.wantEpoch(8)
	tb.refused(epoch.ErrStale, 1)
	tc.applies(1)
	td := a.claims(orders0, 8)
	td.wantEpoch(9)
	tc.refused(epoch.ErrStale, 1)
	td.applies(1)
	w.wantEffects(orders0, "0@6 1@7 2@8 3@9")
}

func retained(w *world) {
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	kept, given := a.claims(orders0, 5), a.claims(orders1, 5)
	kept.applies(1)
	given.applies(1)
	for generation := int64(6); generation <= 8; generation++ { // orders/0 has none of these leases
		tb := b.claims(orders1, generation)
		tb.applies(1)
		kept.applies(1)
	}
	given.refused(epoch.ErrStale, 1)
	kept.wantFence()
	w.wantEffects(orders0, "0-3@5")
	w.wantEffects(orders1, "0@5 1@6 2@7 3@8")
}

func restoredFromBackup(w *world) {
	// The receiver of fenced calls refuses epochs below the highest that it has seen.
	var remembered epoch.Epoch
	receives := func(t *tenure) {
		w.Helper()
		w.Mustf(t.Epoch > remembered, "%s's epoch %d is no higher than the receiver has seen, %d", t.name, t.Epoch, remembered)
		remembered = t.Epoch
	}
	ta := w.owned(5)
	receives(ta)
	ta.applies(2) // the backup is taken here
	backup := ta.Fence
	ta.applies(1)
	tb := w.process("B").claims(orders0, 9)
	receives(tb)
	tb.applies(4)

	// The restored backup has the fence of that time.
	after := w.elsewhere()
	after.seedAt(backup.Next, orders0)
	restored := after.process("A")
	_, err := restored.sink.Claim(w.ctx, restored.reads(orders0), epoch.Claim{Lease: lease(orders0, 5, "A"), ID: backup.Claim})
	w.NoError(err)
	tb.process = after.process("B")
	tb.refused(epoch.ErrStale, 1)
	ta.process = restored
	ta.refused(epoch.ErrMoved, 1) // the backup has its claim, but not its position
	tc := after.process("C").claims(orders0, 10)
	tc.wantEpoch(10)
	receives(tc)
	ta.refused(epoch.ErrStale, 1)
	tb.refused(epoch.ErrStale, 1)
	tc.applies(2)
	after.wantEffects(orders0, "2-3@10")
}

// wentBack uses a second database for a standby that lacked the last commits.
func wentBack(w *world) {
	w.seed(orders0, orders1)
	a := w.process("A")
	t0, t1 := a.claims(orders0, 8), a.claims(orders1, 8)
	t0.applies(1400)
	t1.applies(1400)

	after := w.elsewhere()
	after.seedAt(1000, orders0)
	after.seedAt(1000, orders1)
	standby := after.process("A")
	older := standby.claims(orders0, 7).Fence
	if _, err := standby.sink.Claim(w.ctx, standby.reads(orders1), epoch.Claim{Lease: lease(orders1, 8, "A"), ID: t1.Claim}); err != nil {
		w.Fatal(err)
	}
	t0.process, t1.process = standby, standby
	fell := func(now epoch.Fence, was *tenure, how string) {
		w.Helper()
		var back *epoch.WentBackError
		err := was.CheckUnchanged(now)
		w.Wantf(errors.As(err, &back) && back.Now.Next == 1000 && back.Was == was.Fence, "%s, %s: %v; want a WentBackError to offset 1000", was.Partition, how, err)
	}
	var stale *epoch.StaleError
	if err := t0.tries(1); !errors.As(err, &stale) {
		w.Fatalf("an advance under a claim that is lost: %v", err)
	}
	fell(stale.Held, t0, "by the refusal")
	w.Wantf(stale.Held == older, "the refusal shows\n%+v, want\n%+v", stale.Held, older)
	var moved *epoch.MovedError
	if err := t1.tries(1); !errors.As(err, &moved) {
		w.Fatalf("an advance from a position that is lost: %v", err)
	}
	now := t1.Fence
	now.Next = moved.Next
	fell(now, t1, "by the refusal")

	looked, err := standby.sink.Look(w.ctx, []epoch.Partition{orders0, orders1})
	w.NoError(err)
	fell(looked[orders0], t0, "by a look")
	fell(looked[orders1], t1, "by a look")
	later := standby.claims(orders0, 9)
	if err := (&tenure{Fence: older}).CheckUnchanged(later.Fence); !errors.Is(err, epoch.ErrStale) {
		w.Errorf("a later claim is %v", err)
	}
}

func logChanged(w *world) {
	ta := w.owned(5)
	a := ta.process
	ta.applies(3)
	l := lease(orders0, 6, "A")
	l.Log = "cluster-1/topic-2"
	_, err := a.sink.Claim(w.ctx, a.reads(orders0), epoch.NewClaim(l))
	w.wantOnly(err, epoch.ErrLogChanged, "A claims the recreated topic")
	if changed, ok := errors.AsType[*epoch.LogChangedError](err); !ok || changed.Fence != "cluster-1/topic-1" || changed.Source != "cluster-1/topic-2" || changed.Next != 3 {
		w.Errorf("the refusal is %#v; want both logs and the position 3", changed)
	}
	ta.wantFence()
}

func twoGroups(w *world) {
	billing := epoch.Partition{Group: "billing", Topic: "orders"}
	shipping := epoch.Partition{Group: "shipping", Topic: "orders"}
	w.seed(billing)
	w.seedAt(4, shipping)
	a, b := w.process("A"), w.process("B")
	ta, tb := a.claims(billing, 5), b.claims(shipping, 3)
	ta.applies(2)
	tb.applies(2)
	tb = b.claims(shipping, 4)
	ta.applies(1)
	tb.applies(1)
	stolen := *ta
	stolen.Claim = tb.Claim
	stolen.refused(epoch.ErrStale, 1) // a claim is valid for its own partition alone
	w.wantEffects(billing, "0-2@5")
	w.wantEffects(shipping, "4-5@3 6@4")
	ta.wantFence()
	tb.wantFence()
}

func twoDeployments(w *world) {
	ta := w.owned(5)
	b := w.process("B")
	ta.applies(1)
	l := lease(orders0, 6, "B")
	l.Source = "cluster-2"
	_, err := b.sink.Claim(w.ctx, b.reads(orders0), epoch.NewClaim(l))
	w.wantOnly(err, epoch.ErrForeignLease, "B claims by another cluster's lease")
	if foreign, ok := errors.AsType[*epoch.ForeignLeaseError](err); !ok || foreign.Fence != "cluster-1" || foreign.Source != "cluster-2" || foreign.Owner != "A" {
		w.Errorf("the refusal is %#v; want both issuers and the owner", foreign)
	}
	ta.applies(1)
	ta.wantFence()
	w.wantEffects(orders0, "0-1@5")
}
