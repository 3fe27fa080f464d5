package cassink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func TestEachUpdateIsObservedOnceItsItemIsWrittenAndBeforeThePositionIs(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New()}
	var s *cassink.Sink
	var said []string
	observe := func(e guard.Event) {
		f, err := epoch.FenceOf(t.Context(), s, orders)
		must(t, err)
		said = append(said, fmt.Sprintf("%s@%d under %d: %v, seen %d, position %d", e.Key, e.Stamp.Offset, e.Stamp.Epoch, e.Decision, e.Seen, f.Next))
	}
	want := func(about string, want ...string) {
		t.Helper()
		slices.Sort(said)
		if !slices.Equal(said, want) {
			t.Errorf("%s: %q, want %q", about, said, want)
		}
		said = nil
	}
	s, f := claimsWith(t, store, cassink.Options{Observe: observe})
	commit := func(fails error) error {
		return s.Commit(t.Context(), []epoch.Advance{advance(f, 2)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
			for offset := range epoch.Offset(2) {
				must(t, second(tx.Update(ctx, message(offset), "stock", add(fmt.Sprint(offset)))))
				must(t, second(tx.Update(ctx, message(offset), fmt.Sprint("order/", offset), add("sold"))))
			}
			return fails
		})
	}
	if err := commit(errPoison); !errors.Is(err, errPoison) {
		t.Error(err)
	}
	want("a handler that fails")
	store.loses = "epochfence/fence"
	if err := commit(nil); !errors.Is(err, epoch.ErrInDoubt) {
		t.Error(err)
	}
	want("items that are written, and a position that is not",
		"order/0@0 under 1: changed, seen 0, position 0", "order/1@1 under 1: changed, seen 0, position 0",
		"stock@0 under 1: changed, seen 0, position 0", "stock@1 under 1: changed, seen 0, position 0")
	store.loses = ""
	must(t, commit(nil))
	want("the same messages again",
		"order/0@0 under 1: repeated, seen 1, position 0", "order/1@1 under 1: repeated, seen 1, position 0",
		"stock@0 under 1: repeated, seen 1, position 0", "stock@1 under 1: repeated, seen 1, position 0")
}

func TestAnItemThatRefusesATransactionIsObservedWithBothEpochs(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	later := guard.Stamp{Partition: orders, Log: "log", Epoch: 40, Offset: 0, Mark: epoch.NoMark}
	must(t, second(guard.Apply(t.Context(), store, "stock", later, add("0"))))
	var events []guard.Event
	s, f := claimsWith(t, store, cassink.Options{Observe: func(e guard.Event) { events = append(events, e) }})
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		must(t, second(tx.Update(ctx, message(0), "order", add("sold"))))
		return second(tx.Update(ctx, message(0), "stock", add("again")))
	})
	if !errors.Is(err, guard.ErrStale) || len(events) != 1 {
		t.Fatalf("%v, %+v", err, events)
	}
	if e := events[0]; e.Key != "stock" || e.Decision != guard.Stale || e.Stamp.Epoch != 1 || e.Seen != 40 || e.Stamp.Partition != orders {
		t.Errorf("%+v", e)
	}
}
