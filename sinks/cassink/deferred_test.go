package cassink_test

import (
	"context"
	"errors"
	"testing"
	"time"

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
