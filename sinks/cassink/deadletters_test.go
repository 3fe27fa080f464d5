package cassink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func (w *owner) buries() operate.DeadLetter {
	w.Helper()
	must(w.T, w.applies(w.fence.Next+1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errPoison)
	}))
	letters, err := w.sink.Operator().DeadLetters(w.Context(), operate.DeadLetterQuery{})
	must(w.T, err)
	return letters[len(letters)-1]
}

// The operator is told that it failed, tries again, and is told that it was requested. So it must be.
func TestAReplayWhoseRequestWasInterruptedIsRequestedByTheNextTry(t *testing.T) {
	t.Parallel()
	s := &failing{Store: memstore.New()}
	w := owns(t, s, orders)
	l := w.buries()
	o := w.sink.Operator()
	for _, prefix := range []string{"epochfence/requests", "epochfence/log", "epochfence/dead"} {
		s.prefix, s.fails = prefix, 1
		_, err := o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"})
		s.fails = 0
		if err != nil {
			seen, err := o.DeadLetter(t.Context(), l.ID)
			must(t, err)
			_, err = o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: seen, By: "anna", Reason: "fixed"})
			if err != nil && !errors.Is(err, operate.ErrNothingToDo) {
				t.Fatal(err)
			}
		}
		found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
		if err != nil || len(found.Replays) != 1 {
			t.Fatalf("%s was not written: %v, %v", prefix, found.Replays, err)
		}
		l, err = o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: mustGet(t, o, l.ID), By: "anna", Reason: "not yet"})
		must(t, err)
	}
}

func mustGet(t *testing.T, o operate.Operator, id int64) operate.DeadLetter {
	t.Helper()
	l, err := o.DeadLetter(t.Context(), id)
	must(t, err)
	return l
}

// An operator discards a dead letter in the middle of its replay.
func TestADeadLetterThatIsBeingReplayedIsNotDiscarded(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	l := w.buries()
	o := w.sink.Operator()
	l, err := o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"})
	must(t, err)
	found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
	must(t, err)
	r := found.Replays[0]
	m := r.Message
	m.Replay = r.ID
	var discard error
	during := &hooked{Store: mem, key: "item", do: func() {
		_, discard = o.DoDeadLetter(context.Background(), operate.DeadLetterAct{Kind: operate.Discard, Seen: l, By: "anna", Reason: "no"})
	}}
	sink, err := cassink.Open(t.Context(), during, cassink.Options{})
	must(t, err)
	a := epoch.Advance{Partition: orders, Claim: w.fence.Claim, From: w.fence.Next, To: w.fence.Next, Mark: w.fence.Mark}
	err = sink.Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		if err := sets(ctx, tx, m, "item"); err != nil {
			return err
		}
		return operate.RecordsIn[*cassink.Tx](sink).Replayed(ctx, tx, r, w.fence)
	})
	if err != nil || !errors.Is(discard, operate.ErrDeadLetterChanged) {
		t.Errorf("replay: %v, discard: %v", err, discard)
	}
}

func TestNothingIsDoneToADeadLetterThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	store := &failing{Store: memstore.New(), prefix: "epochfence/log/"}
	w := owns(t, store, orders)
	l := w.buries()
	for _, kind := range []operate.DeadLetterKind{operate.Replay, operate.Withdraw, operate.Discard} {
		act := operate.DeadLetterAct{Kind: kind, Seen: l, By: "anna", Reason: "fixed"}
		store.fails = 100
		if _, err := w.sink.Operator().DoDeadLetter(t.Context(), act); err == nil {
			t.Errorf("%s is done", kind)
		}
		if now, err := w.sink.Operator().DeadLetter(t.Context(), l.ID); err != nil || now.Request != l.Request || now.Requested != l.Requested {
			t.Errorf("after a %s that was not recorded: %+v, %v", kind, now, err)
		}
		store.fails = 0
		var err error
		l, err = w.sink.Operator().DoDeadLetter(t.Context(), act)
		must(t, err)
	}
}

func TestManyRequestedReplaysAreReadSomeAtATimeTheOldestFirst(t *testing.T) {
	t.Parallel()
	w := owns(t, memstore.New(), orders)
	must(t, w.applies(100, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errPoison)
	}))
	o := w.sink.Operator()
	letters, err := o.DeadLetters(t.Context(), operate.DeadLetterQuery{Limit: 100})
	must(t, err)
	for _, l := range slices.Backward(letters) {
		must(t, second(o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"})))
	}
	found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
	if err != nil || len(found.Replays) > 50 || found.Replays[0].ID != letters[0].ID {
		t.Errorf("%d, from %d on, %v; the oldest is %d", len(found.Replays), found.Replays[0].ID, err, letters[0].ID)
	}
}

func TestAMessageThatTheStoreCouldHaveCanBeBuried(t *testing.T) {
	w := owns(t, small{memstore.New(), cas.Facts{MaxValue: 300 << 10}}, orders) // dynamostore's
	value := bytes.Repeat([]byte("v"), 290<<10)
	must(t, w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		m.Value = value
		return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errPoison)
	}))
	letters, err := w.sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{})
	must(t, err)
	l, err := w.sink.Operator().DeadLetter(t.Context(), letters[0].ID)
	if must(t, err); !bytes.Equal(l.Message.Value, value) {
		t.Errorf("its value has %d bytes", len(l.Message.Value))
	}
}

// What does not fit into an item is kept in parts, and nothing of it stays.
func TestAMessageThatDoesNotFitAnItemIsBuriedInParts(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("0123456789"), 10_000)
	for what, change := range map[string]func(m *epoch.Message){
		"value":   func(m *epoch.Message) { m.Value = long },
		"key":     func(m *epoch.Message) { m.Key = long },
		"headers": func(m *epoch.Message) { m.Headers = []epoch.Header{{Key: "h\xff", Value: long}, {Key: "n"}} },
	} {
		mem := memstore.New()
		w := owns(t, small{mem, cas.Facts{MaxValue: 32 << 10, MaxNote: 32 << 10}}, orders)
		m := epoch.Message{Partition: orders, Mark: epoch.NoMark, Key: []byte("k"), Value: []byte("v")}
		change(&m)
		for _, kind := range []operate.DeadLetterKind{operate.Replay, operate.Discard} {
			must(t, w.applies(w.fence.Next+1, func(ctx context.Context, tx *cassink.Tx, at epoch.Message) error {
				m.Offset = at.Offset
				return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errors.New(strings.Repeat("\x00", 2<<20)))
			}))
			letters, err := w.sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{})
			must(t, err)
			l := mustGet(t, w.sink.Operator(), letters[0].ID)
			if fmt.Sprint(l.Message) != fmt.Sprint(m) {
				t.Errorf("%s: %.100v", what, l.Message)
			}
			l, err = w.sink.Operator().DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: kind, Seen: l, By: "anna", Reason: "fixed"})
			must(t, err)
			if kind == operate.Replay {
				found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
				if err != nil || len(found.Replays) != 1 || fmt.Sprint(found.Replays[0].Message) != fmt.Sprint(m) {
					t.Fatalf("%s: %.200v, %v", what, found.Replays, err)
				}
				must(t, operate.RecordsIn[*cassink.Tx](w.sink).ReplayFailed(t.Context(), found.Replays[0], w.fence, errors.New(strings.Repeat("\x01", 2<<20))))
				l, err = w.sink.Operator().DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: kind, Seen: mustGet(t, w.sink.Operator(), l.ID), By: "anna", Reason: "fixed"})
				must(t, err)
				replay(t, w, l)
			}
			for it, err := range mem.List(t.Context(), "epochfence/dead") {
				t.Errorf("%s: after a %s: item %q, %v", what, kind, it.Key, err)
			}
		}
	}
}

// The letter is written before the position, and its transaction is refused then.
func TestADeadLetterOfATransactionThatWasRefusedDoesNotExist(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New(), loses: ""}
	s, f := claims(t, store)
	store.loses = "epochfence/fence"
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		return s.DeadLetter(ctx, tx, message(0), f.Epoch, errPoison)
	})
	if !errors.Is(err, epoch.ErrInDoubt) {
		t.Fatal(err)
	}
	if letters, err := s.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(letters) != 0 {
		t.Errorf("%+v, %v", letters, err)
	}
}
