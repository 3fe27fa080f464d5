package sinktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the histories of messages that their handler wants again later.

var errLater = errors.New("the bank does not answer")

// defers moves the position past a message that is stored for later.
func (t *tenure) defers(delay time.Duration) {
	t.w.Helper()
	d := t.advance(1)
	t.w.NoErrorf(t.commit([]epoch.Advance{d}, t.deferring(d, delay)), "%s defers offset %d", t.name, d.From)
	t.Next, t.Mark, t.Applied = d.To, d.Mark, true
}

func (t *tenure) deferring(d epoch.Advance, delay time.Duration) func(ctx context.Context, tx any) error {
	return func(ctx context.Context, tx any) error {
		return t.records().Defer(ctx, tx, letter(d.Partition, d.From), t.Epoch, errLater, delay)
	}
}

// due waits until the owner of orders0 is given a replay, and no other.
func (a *process) due() operate.RequestedReplay {
	a.w.Helper()
	var rs []operate.RequestedReplay
	a.w.until("a replay is due", func() bool {
		rs = a.requested(orders0)
		return len(rs) == 1
	})
	return rs[0]
}

func (h *person) deferred(n int) []operate.DeadLetter {
	h.w.Helper()
	ls := h.letters(operate.DeadLetterQuery{Deferred: true})
	h.w.Mustf(len(ls) == n, "%d are deferred, want %d: %+v", len(ls), n, ls)
	return ls
}

func deferring(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.defers(time.Hour)
	ta.defers(time.Millisecond)
	r := ta.due()
	w.Mustf(r.Message.Offset == 1 && r.IsDue && r.Deferred == 1 && r.Delay == time.Millisecond && sameMessage(r.Message, letter(orders0, 1)), "due is %+v", r)
	w.Wantf(len(ta.requested(orders1)) == 0, "something is due of another partition")

	tb := w.process("B").claims(orders0, 6)
	w.wantOnly(ta.replays(r), epoch.ErrStale, "the replay of an owner that has lost its claim")
	d := ta.advance(1)
	w.wantOnly(ta.commit([]epoch.Advance{d}, ta.deferring(d, 0)), epoch.ErrStale, "what an owner defers that has lost its claim")
	h.deferred(2)
	r = tb.due()
	w.NoErrorf(tb.records().DeferAgain(w.ctx, r, errors.New("still not"), time.Millisecond), "defer it again")
	w.NoErrorf(tb.records().DeferAgain(w.ctx, r, errors.New("late"), time.Hour), "defer it again, from an earlier reading")
	w.wantOnly(tb.replays(r), operate.ErrRowChanged, "the replay of what was deferred again")
	failed := h.deferred(2)[1]
	w.Wantf(failed.ReplayError == "still not" && failed.ReplayFailedAt.Equal(failed.Due.Add(-time.Millisecond)), "what was deferred again is %+v", failed)
	again := tb.due()
	w.Mustf(again.Message.Offset == 1 && again.Deferred == 2, "due is %+v", again)
	w.NoErrorf(tb.replays(again), "the replay")
	tb.wantFence()
	w.wantOnly(tb.replays(again), operate.ErrRowChanged, "a second replay")
	w.wantList(orders0.String(), effect(1, 6))
	h.wantLog(orders0, "claim 5 -1>0", "claim 6 2>2", fmt.Sprintf("replay 6 1>1: dead letter %d", r.ID))
	left := h.deferred(1)[0]
	w.Wantf(left.Message.Offset == 0 && len(tb.requested(orders0)) == 0, "what is due in an hour is %+v", left)
}

func deferredIsOperated(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	for range 3 {
		ta.defers(time.Hour)
	}
	of, err := h.op.Partition(w.ctx, orders0)
	w.Mustf(err == nil && of.DeadLetters == 0 && len(h.letters(operate.DeadLetterQuery{})) == 0, "of what is deferred, %d are dead letters, %v", of.DeadLetters, err)
	ls := h.deferred(3)
	for _, l := range ls {
		after := l.Due.Sub(l.At)
		w.Wantf(l.Deferred == 1 && l.ReplayFailedAt.IsZero() && l.Error == errLater.Error() && after >= time.Hour && after < time.Hour+time.Minute, "deferred is %+v, due %v after it was stored", l, after)
	}

	h.doesLetter(operate.Discard, ls[0])
	withdrawn := h.doesLetter(operate.Withdraw, ls[1])
	hurried := h.doesLetter(operate.Replay, ls[2])
	w.Wantf(withdrawn.Due.IsZero() && hurried.Due.IsZero() && hurried.RequestedBy == "anna", "after the actions: %+v, %+v", withdrawn, hurried)
	h.deferred(0)
	rs := ta.requested(orders0)
	w.Mustf(len(rs) == 1 && rs[0].ID == hurried.ID && !rs[0].IsDue && rs[0].Deferred == 1, "requested are %+v", rs)
	w.NoErrorf(ta.records().DeferAgain(w.ctx, rs[0], errLater, time.Millisecond), "defer what an operator has requested")
	r := ta.due()
	w.NoErrorf(ta.records().ReplayFailed(w.ctx, r, ta.Fence, errors.New("never")), "give up what was deferred")
	dead := h.letters(operate.DeadLetterQuery{})
	w.Mustf(len(dead) == 2 && dead[0].ID == withdrawn.ID && dead[1].ID == r.ID && dead[1].ReplayError == "never" && dead[1].Deferred == 2, "the dead letters are %+v", dead)
	w.Wantf(len(ta.requested(orders0)) == 0, "a dead letter is replayed")
	w.wantOnly(ta.replays(r), operate.ErrRowChanged, "the replay of a dead letter that nobody has requested")
	of, err = h.op.Partition(w.ctx, orders0)
	w.Wantf(err == nil && of.DeadLetters == 2, "%d dead letters, %v", of.DeadLetters, err)
}
