package cassink_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func (w *owner) defers() error {
	return w.applies(w.fence.Next+1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return operate.RecordsIn[*cassink.Tx](w.sink).Defer(ctx, tx, m, w.fence.Epoch, errPoison, time.Hour)
	})
}

// A partition that halted instead would replay nothing, and so nothing would ever make room.
func TestAMessageThatCannotBeDeferredYetWaitsForRoom(t *testing.T) {
	t.Parallel()
	w := owns(t, memstore.New(), orders)
	room, err := cassink.FillDeferred(t.Context(), w.sink, epoch.Partition{Group: "billing", Topic: "shipments"}, time.Now().Add(time.Hour))
	must(t, err)
	for range 2 {
		if err := w.defers(); !errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrUnhealthy) {
			t.Fatalf("without room, the message is deferred with %v", err)
		}
	}
	must(t, room())
	must(t, w.defers())
	ls, err := w.sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{Deferred: true})
	if err != nil || len(ls) != 1 || ls[0].Message.Offset != 0 {
		t.Errorf("deferred are %+v, %v", ls, err)
	}
}

// Whoever replays or discards a message takes it from the list at best effort.
func TestWhatIsListedAsDeferredAndGoneTakesNoRoom(t *testing.T) {
	t.Parallel()
	w := owns(t, memstore.New(), orders)
	for _, at := range []struct {
		due  time.Duration
		full bool
	}{{time.Hour, true}, {-time.Minute, true}, {-2 * time.Hour, false}} {
		_, err := cassink.FillDeferred(t.Context(), w.sink, orders, time.Now().Add(at.due))
		must(t, err)
		found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
		if err != nil || len(found.Replays) != 0 {
			t.Fatalf("what is gone is replayed: %+v, %v", found, err)
		}
		if err := w.defers(); errors.Is(err, epoch.ErrTransient) != at.full || err != nil && !at.full {
			t.Errorf("beside messages that are gone, due in %v: %v", at.due, err)
		}
		must(t, cassink.ForgetDeferred(t.Context(), w.sink))
	}
}

// dying is a store of a process that dies once it has written so many items. Whatever comes later fails.
type dying struct {
	cas.Store
	writes int
}

func (d *dying) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if d.writes--; d.writes < 0 {
		return cas.Item{}, errLost
	}
	return d.Store.Swap(ctx, seen, value, note)
}

func (d *dying) Delete(ctx context.Context, seen cas.Item) error {
	if d.writes--; d.writes < 0 {
		return errLost
	}
	return d.Store.Delete(ctx, seen)
}

// Whatever a process has written of a message that it was about to defer, the next owner defers or replays the message
// once, and nothing of the first attempt stays.
func TestAProcessThatDiesBetweenTheWritesOfADeferralLeavesNothing(t *testing.T) {
	t.Parallel()
	value := bytes.Repeat([]byte("0123456789"), 9_000) // in parts
	committed := false
	for writes := 0; !committed; writes++ {
		mem := memstore.New()
		little := small{mem, cas.Facts{MaxValue: 32 << 10, MaxNote: 32 << 10}}
		defers := func(w *owner) error {
			return w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
				m.Value = value
				return operate.RecordsIn[*cassink.Tx](w.sink).Defer(ctx, tx, m, w.fence.Epoch, errPoison, 0)
			})
		}
		store := &dying{Store: little, writes: 1 << 20}
		w := owns(t, store, orders)
		store.writes = writes
		_ = defers(w)

		next := owns(t, little, orders)
		if committed = next.fence.Next == 1; !committed {
			must(t, defers(next))
		}
		records := operate.RecordsIn[*cassink.Tx](next.sink)
		for range 2 { // the first look finds what is left
			found, err := records.Requests(t.Context(), []epoch.Partition{orders})
			if err != nil || len(found.Replays) != 1 || !bytes.Equal(found.Replays[0].Message.Value, value) {
				t.Fatalf("after %d writes, %d are to be replayed, %v", writes, len(found.Replays), err)
			}
		}
		ls, err := next.sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{Deferred: true})
		if err != nil || len(ls) != 1 {
			t.Fatalf("after %d writes, deferred are %+v, %v", writes, ls, err)
		}
		listed, err := next.sink.CountDeferred(t.Context(), func(epoch.Partition) bool { return true })
		if err != nil || listed != 1 {
			t.Errorf("after %d writes, %d are listed, %v", writes, listed, err)
		}
		replay(t, next, ls[0])
		for it, err := range mem.List(t.Context(), "epochfence/dead") {
			t.Errorf("after %d writes, item %q stays, %v", writes, it.Key, err)
		}
		if writes > 20 {
			t.Fatal("it dies before the commit each time")
		}
	}
}

// A living owner's transaction may be between two writes while an operator or another poll looks.
func TestWhatIsAboutToBeDeferredIsNotTakenForWhatADeadProcessHasLeft(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	shipments := epoch.Partition{Group: "billing", Topic: "shipments"}
	store := &hooked{Store: mem}
	w, other := owns(t, store, orders), owns(t, mem, shipments)
	for range 3 {
		other.claims() // its epochs are higher
	}
	looked := false
	store.key, store.do = fenceKey, func() {
		looked = true
		must(t, second(operate.RecordsIn[*cassink.Tx](other.sink).Requests(t.Context(), []epoch.Partition{orders, shipments})))
		must(t, second(other.sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{})))
	}
	must(t, w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return operate.RecordsIn[*cassink.Tx](w.sink).Defer(ctx, tx, m, 0, errPoison, 0)
	}))
	found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
	if err != nil || len(found.Replays) != 1 || !looked {
		t.Errorf("to be replayed are %+v, %v", found.Replays, err)
	}
}

// A list that could not be written after an operator has withdrawn a message, or a replay has failed for good, names the
// message still.
func TestWhatIsDeferredNoLongerTakesNoRoom(t *testing.T) {
	t.Parallel()
	store := &failing{Store: memstore.New(), prefix: "epochfence/requests"}
	w := owns(t, store, orders)
	must(t, w.defers())
	o := w.sink.Operator()
	ls, err := o.DeadLetters(t.Context(), operate.DeadLetterQuery{Deferred: true})
	must(t, err)
	store.fails = 100
	must(t, second(o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: ls[0], By: "anna", Reason: "no"})))
	store.fails = 0
	for _, at := range []struct {
		due  time.Duration
		want int
	}{{-time.Minute, 1}, {-2 * time.Hour, 0}} {
		must(t, cassink.SetDue(t.Context(), w.sink, time.Now().Add(at.due)))
		found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
		if err != nil || len(found.Replays) != 0 {
			t.Errorf("what was withdrawn is replayed: %+v, %v", found.Replays, err)
		}
		if n, err := w.sink.CountDeferred(t.Context(), func(epoch.Partition) bool { return true }); err != nil || n != at.want {
			t.Errorf("due in %v, %d are listed, want %d, %v", at.due, n, at.want, err)
		}
	}
	must(t, second(o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: mustGet(t, o, ls[0].ID), By: "anna", Reason: "yes"})))
	found, err := operate.RecordsIn[*cassink.Tx](w.sink).Requests(t.Context(), []epoch.Partition{orders})
	if err != nil || len(found.Replays) != 1 {
		t.Errorf("requested are %+v, %v", found.Replays, err)
	}
}
