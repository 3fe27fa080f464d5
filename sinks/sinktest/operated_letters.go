package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func letter(p epoch.Partition, at epoch.Offset) epoch.Message {
	return epoch.Message{
		Partition: p, Offset: at, Key: []byte("k\xff"), Value: []byte{0, 0xfe},
		Headers: []epoch.Header{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{0xff}}, {Key: "b\xff", Value: []byte{}}, {Key: "c", Value: nil}, {Key: "c", Value: []byte("NULL")},
		},
		Time: letterTimes[int(at)%len(letterTimes)],
	}
}

// letterTimes are times that producers write, also those that take microseconds or nanoseconds for
// milliseconds.
var letterTimes = []time.Time{
	time.Date(2026, 3, 4, 5, 6, 7, 8009, time.UTC),
	time.UnixMilli(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).UnixMicro()).UTC(),
	time.UnixMilli(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).UnixNano()).UTC(),
}

func sameMessage(a, b epoch.Message) bool {
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) && slices.EqualFunc(a.Headers, b.Headers, func(a, b epoch.Header) bool {
		return (a.Value == nil) == (b.Value == nil)
	})
}

func (t *tenure) buries(messages int) {
	t.w.Helper()
	for range messages {
		d := t.advance(1)
		err := t.commit([]epoch.Advance{d}, func(ctx context.Context, tx any) error {
			return t.w.db.DeadLetter(ctx, tx, letter(d.Partition, d.From), t.Epoch, fmt.Errorf("poison %d", d.From))
		})
		t.w.NoErrorf(err, "%s puts offset %d aside", t.name, d.From)
		t.Next, t.Mark, t.Applied = d.To, d.Mark, true
	}
}

func longTexts(w *world) {
	w.seed(orders0)
	h, long := w.person(), errors.New("begins "+strings.Repeat("é\x00", 1<<20))
	ta := w.process("A").claims(orders0, 5)
	kept := func(what, text string, room int) {
		w.Helper()
		w.Wantf(len(text) <= operate.MaxText+room && strings.Contains(text, "begins é"), "%s has %d bytes: %.40q", what, len(text), text)
	}
	d := ta.advance(1)
	err := ta.commit([]epoch.Advance{d}, func(ctx context.Context, tx any) error {
		return w.db.DeadLetter(ctx, tx, letter(d.Partition, d.From), ta.Epoch, long)
	})
	w.NoErrorf(err, "an error with a long text")
	ta.Next, ta.Mark, ta.Applied = d.To, d.Mark, true
	l := h.doesLetter(operate.Replay, h.letters(operate.DeadLetterQuery{})[0])
	kept("a dead letter", l.Error, 0)
	w.NoErrorf(ta.records().ReplayFailed(w.ctx, ta.requested(orders0)[0], ta.Fence, long), "the failure of a replay")
	kept("a replay that failed", h.letters(operate.DeadLetterQuery{})[0].ReplayError, 0)
	halt := operate.Decision{Kind: operate.DecidedHalt, Partition: orders0, Epoch: ta.Epoch, Claim: ta.Claim, From: -1, To: -1, Reason: long.Error()}
	w.NoErrorf(ta.records().Record(w.ctx, []operate.Decision{halt}), "record a halt")
	for _, e := range h.history(operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedHalt}}) {
		kept("an entry of the audit log", e.Reason, 0)
	}
}

func (h *person) letters(q operate.DeadLetterQuery) []operate.DeadLetter {
	h.w.Helper()
	ls, err := h.op.DeadLetters(h.w.ctx, q)
	h.w.NoErrorf(err, "list dead letters")
	return ls
}

func showingDeadLetters(w *world) {
	w.seed(orders0, orders1)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(3)
	w.process("A").claims(orders1, 6).buries(1)
	all := h.letters(operate.DeadLetterQuery{})
	w.Mustf(len(all) == 4, "%d dead letters: %+v", len(all), all)
	for i, l := range all[:3] {
		m := letter(orders0, epoch.Offset(i))
		if l.Message.Partition != orders0 || l.Message.Offset != m.Offset || !l.Message.Time.Equal(m.Time) || l.Message.Key != nil || l.Message.Value != nil ||
			l.Message.Headers != nil || l.Error != fmt.Sprintf("poison %d", i) || l.Epoch != 5 || l.At.IsZero() || l.Requested || l.Request != 0 {
			w.Errorf("listed: %+v", l)
		}
		shown, err := h.op.DeadLetter(w.ctx, l.ID)
		w.Wantf(err == nil && sameMessage(shown.Message, m), "shown: %+v, %v; want the message %+v", shown, err, m)
	}
	for n, q := range map[int]operate.DeadLetterQuery{
		3: {Filter: operate.Filter{Group: "billing", Topic: "orders"}, Number: new(int32)},
		2: {After: all[1].ID},
		1: {Limit: 1},
		0: {Requested: true},
	} {
		ls := h.letters(q)
		w.Wantf(len(ls) == n, "%+v selects %d", q, len(ls))
	}
	if _, err := h.op.DeadLetter(w.ctx, 1<<40); !errors.Is(err, operate.ErrNoDeadLetter) {
		w.Errorf("one that is not there: %v", err)
	}
}

func (h *person) doesLetter(kind operate.DeadLetterKind, seen operate.DeadLetter) operate.DeadLetter {
	h.w.Helper()
	l, err := h.op.DoDeadLetter(h.w.ctx, operate.DeadLetterAct{Kind: kind, Seen: seen, By: "anna", Reason: "fixed"})
	h.w.NoErrorf(err, "%s dead letter %d", kind, seen.ID)
	return l
}

func (a *process) requested(ps ...epoch.Partition) []operate.RequestedReplay {
	a.w.Helper()
	r, err := a.records().Requests(a.w.ctx, ps)
	a.w.NoErrorf(err, "look for requests")
	return r.Replays
}

func (t *tenure) replays(r operate.RequestedReplay) error {
	t.w.Helper()
	return t.commit([]epoch.Advance{t.advance(0)}, func(ctx context.Context, tx any) error {
		if err := t.w.db.Append(ctx, tx, t.Partition.String(), effect(r.Message.Offset, t.Epoch)); err != nil {
			return err
		}
		return t.records().Replayed(ctx, tx, r, t.Fence)
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
	w.Wantf(l.Requested && l.Request == 1 && l.RequestedBy == "anna" && !l.RequestedAt.IsZero(), "requested: %+v", l)
	rs := ta.requested(orders1, orders0)
	w.Mustf(len(rs) == 1 && rs[0].ID == l.ID && rs[0].Request == 1 && sameMessage(rs[0].Message, letter(orders0, 1)), "requested are %+v", rs)
	none := ta.requested(orders1)
	w.Wantf(len(none) == 0, "of another partition, %+v is requested", none)

	tb := w.process("B").claims(orders0, 6)
	w.wantOnly(ta.replays(rs[0]), epoch.ErrStale, "the replay of an owner that has lost its claim")
	w.wantList(orders0.String())
	n := len(tb.requested(orders0))
	w.Mustf(n == 1, "after a replay that was refused %d are requested", n)
	w.NoErrorf(tb.replays(rs[0]), "the replay")
	tb.wantFence()
	w.wantList(orders0.String(), effect(1, 6))
	_, err := h.op.DeadLetter(w.ctx, l.ID)
	w.Wantf(errors.Is(err, operate.ErrNoDeadLetter) && len(h.letters(operate.DeadLetterQuery{})) == 2, "what was replayed is still there: %v", err)
	h.wantLog(orders0, "claim 5 -1>0", fmt.Sprintf("replay-request 5 1>1 anna: dead letter %d: fixed", l.ID), "claim 6 3>3",
		fmt.Sprintf("replay 6 1>1 anna: dead letter %d", l.ID))
	w.wantOnly(tb.replays(rs[0]), operate.ErrRowChanged, "a second replay")
	w.wantList(orders0.String(), effect(1, 6))
}

func fewRequests(w *world) {
	h, a := w.person(), w.process("A")
	var ps []epoch.Partition
	for n := range int32(operate.ReplaysMost/operate.ReplaysEach + 1) {
		ps = append(ps, epoch.Partition{Group: orders0.Group, Topic: orders0.Topic, Number: n})
		w.seed(ps[n])
		a.claims(ps[n], 5).buries(operate.ReplaysEach + 1)
	}
	for _, l := range h.letters(operate.DeadLetterQuery{Limit: 1000}) {
		h.doesLetter(operate.Replay, l)
	}
	of, rs := map[epoch.Partition]epoch.Offset{}, a.requested(ps...)
	for _, r := range rs {
		if of[r.Message.Partition]++; r.Message.Offset != of[r.Message.Partition]-1 || r.Message.Offset >= operate.ReplaysEach {
			w.Errorf("of %s, offset %d is number %d", r.Message.Partition, r.Message.Offset, of[r.Message.Partition])
		}
	}
	w.Wantf(len(rs) == operate.ReplaysMost, "%d are given at a time", len(rs))
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
	w.wantOnly(ta.replays(old), operate.ErrRowChanged, "the replay of what was withdrawn")
	w.Wantf(len(ta.requested(orders0)) == 0, "what was withdrawn is requested")
	again := h.doesLetter(operate.Replay, withdrawn)
	w.wantOnly(ta.replays(old), operate.ErrRowChanged, "the replay of an earlier request")
	w.Wantf(again.Request == 2, "requested again: %+v", again)
	if err := ta.records().ReplayFailed(w.ctx, old, ta.Fence, errors.New("late")); err != nil {
		w.Errorf("the failure of an earlier request: %v", err)
	}
	now := ta.requested(orders0)
	w.Mustf(len(now) == 1 && now[0].Request == 2, "requested are %+v", now)
	h.doesLetter(operate.Discard, again)
	w.wantOnly(ta.replays(now[0]), operate.ErrRowChanged, "the replay of what was discarded")
	w.wantList(orders0.String())
	ta.wantFence()

	// Of several concurrent replays of one dead letter, exactly one succeeds.
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
	w.Wantf(done == 1, "replayed %d times", done)
	w.wantList(orders0.String(), effect(1, 5))

	tb := w.process("B").claims(orders1, 5)
	tb.buries(1)
	h.doesLetter(operate.Replay, h.letters(operate.DeadLetterQuery{})[0])
	if err := ta.replays(tb.requested(orders1)[0]); err == nil {
		w.Error("a dead letter was replayed under a claim of another partition")
	}
}

func replayFails(w *world) {
	h, ta := w.person(), w.owned(5)
	ta.buries(1)
	l := h.doesLetter(operate.Replay, h.letters(operate.DeadLetterQuery{})[0])
	r := ta.requested(orders0)[0]
	w.NoErrorf(ta.records().ReplayFailed(w.ctx, r, ta.Fence, errors.New("still \x00 poison")), "record the failure")
	now, err := h.op.DeadLetter(w.ctx, l.ID)
	if err != nil || now.Requested || now.Request != 1 || !strings.HasSuffix(now.ReplayError, "poison") || now.ReplayFailedAt.IsZero() {
		w.Errorf("after a failure: %+v, %v", now, err)
	}
	w.Wantf(len(ta.requested(orders0)) == 0, "what has failed is still requested")
	ds := h.history(operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedReplayFailure}})
	w.Wantf(len(ds) == 1 && ds[0].Epoch == 5 && ds[0].Claim == ta.Claim && ds[0].By == "anna" && strings.Contains(ds[0].Reason, "poison"), "the log says %+v", ds)
	h.doesLetter(operate.Replay, now)
	rs := ta.requested(orders0)
	w.Wantf(len(rs) == 1 && ta.replays(rs[0]) == nil, "it cannot be requested again: %+v", rs)
	w.wantList(orders0.String(), effect(0, 5))
}

func deadLetterCompares(w *world) {
	w.seed(orders0)
	h := w.person()
	ta := w.process("A").claims(orders0, 5)
	ta.buries(1)
	seen := h.letters(operate.DeadLetterQuery{})[0]
	do := func(kind operate.DeadLetterKind, seen operate.DeadLetter) error {
		_, err := h.op.DoDeadLetter(w.ctx, operate.DeadLetterAct{Kind: kind, Seen: seen, By: "anna", Reason: "fixed"})
		return err
	}
	if err := do(operate.Withdraw, seen); !errors.Is(err, operate.ErrNothingToDo) {
		w.Errorf("withdrawn what was not requested: %v", err)
	}
	now := h.doesLetter(operate.Replay, seen)
	for _, kind := range []operate.DeadLetterKind{operate.Replay, operate.Withdraw, operate.Discard} {
		err := do(kind, seen)
		w.Wantf(errors.Is(err, operate.ErrDeadLetterChanged), "%s of what has changed: %v", kind, err)
	}
	if err := do(operate.Replay, now); !errors.Is(err, operate.ErrNothingToDo) {
		w.Errorf("requested twice: %v", err)
	}
	for name, a := range map[string]operate.DeadLetterAct{
		"nobody":      {Kind: operate.Discard, Seen: now, Reason: "fixed"},
		"no reason":   {Kind: operate.Discard, Seen: now, By: "anna"},
		"no such act": {Kind: "bury", Seen: now, By: "anna", Reason: "fixed"},
	} {
		_, err := h.op.DoDeadLetter(w.ctx, a)
		w.Wantf(errors.Is(err, operate.ErrAct), "%s: %v", name, err)
	}
	elsewhere, moved := now, now
	elsewhere.Message.Partition = orders1
	moved.Message.Offset++
	if err := do(operate.Discard, elsewhere); !errors.Is(err, operate.ErrNoDeadLetter) {
		w.Errorf("discarded one of another partition: %v", err)
	}
	if err := do(operate.Discard, moved); !errors.Is(err, operate.ErrDeadLetterChanged) {
		w.Errorf("discarded one of another message: %v", err)
	}
	h.doesLetter(operate.Discard, now)
	if err := do(operate.Discard, now); !errors.Is(err, operate.ErrNoDeadLetter) {
		w.Errorf("discarded twice: %v", err)
	}
	ds := h.history(operate.HistoryQuery{})
	w.Wantf(len(ds) == 3, "the log has %+v", ds)
	ta.buries(1)
	next := h.letters(operate.DeadLetterQuery{})[0]
	w.Wantf(next.ID > seen.ID, "a dead letter has ID %d after one with ID %d", next.ID, seen.ID)
}
