package cassink_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// The transaction is interrupted after it has written an item. Then its first message cannot be applied,
// and an operator skips it.
func TestSkippingAMessageDoesNotRepeatThoseAfterIt(t *testing.T) {
	t.Parallel()
	s := &failing{Store: memstore.New(), prefix: "other", fails: 100}
	w := owns(t, s, orders)
	handle := func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		if m.Offset == 0 {
			return sets(ctx, tx, m, "other")
		}
		_, err := tx.Update(ctx, m, "list", add(fmt.Sprint(m.Offset)))
		return err
	}
	if err := w.applies(3, handle); !errors.Is(err, epoch.ErrInDoubt) || words(t, s, "list") != "1 2" {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), w.sink, orders)
	must(t, err)
	a := operate.NewAct(operate.ActSkip, seen, "anna", "poison")
	a.To = &epoch.Position{Offset: 1, Mark: epoch.NoMark}
	_, err = w.sink.Operator().Act(t.Context(), a)
	must(t, err)
	w.claims()
	must(t, w.applies(3, handle))
	if got := words(t, s, "list"); got != "1 2" {
		t.Errorf("%q", got)
	}
}

// A message at offset 0 is followed by a gap. The fence was restored from a backup, and the position
// had been in the gap.
func TestAMessageThatWasPassedIsNotBlamedForTheGapBehindIt(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	for n := epoch.Offset(1); n < 4; n++ {
		must(t, w.applies(n, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "item") }))
	}
	at, _ := mem.Get(t.Context(), "epochfence/fence/billing/orders/3")
	_, err := mem.Swap(t.Context(), at, []byte(strings.Replace(string(at.Value), `"Next":3`, `"Next":0`, 1)), nil)
	must(t, err)
	sink, err := cassink.Open(t.Context(), mem, cassink.Options{})
	must(t, err)
	f, err := epoch.FenceOf(t.Context(), sink, orders)
	must(t, err)
	err = sink.Commit(t.Context(), []epoch.Advance{{Partition: orders, Claim: f.Claim, From: f.Next, To: 4, Mark: epoch.NoMark}}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		return sets(ctx, tx, epoch.Message{Partition: orders, Offset: 0, Mark: epoch.NoMark}, "item")
	})
	if !errors.Is(err, epoch.ErrMoved) {
		t.Error(err)
	}
	if f, err = epoch.FenceOf(t.Context(), sink, orders); err != nil || f.Next != 2 {
		t.Errorf("%d, %v", f.Next, err)
	}
}

type hooked struct {
	cas.Store
	key string
	do  func()
}

func (h *hooked) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if seen.Key == h.key && h.do != nil {
		do := h.do
		h.do = nil
		do()
	}
	return h.Store.Swap(ctx, seen, value, note)
}

// The clock of a process that acted on the partition is ten minutes ahead.
func TestWhatIsRecordedLaterIsLaterWhateverTheClocks(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	log, err := mem.Get(t.Context(), "epochfence/log/billing/orders/3")
	must(t, err)
	var ds struct{ Entries []operate.Row }
	must(t, json.Unmarshal(log.Value, &ds))
	ds.Entries[len(ds.Entries)-1].ID += (10 * time.Minute).Milliseconds() << 10
	ds.Entries[len(ds.Entries)-1].State = string(operate.ActResume)
	value, err := json.Marshal(ds)
	must(t, err)
	must(t, second(mem.Swap(t.Context(), log, value, nil)))
	hang := operate.Decision{Kind: operate.DecidedHang, Partition: orders, Epoch: w.fence.Epoch, Claim: w.fence.Claim, Owner: w.fence.Owner}
	must(t, operate.RecordsIn[*cassink.Tx](w.sink).Record(t.Context(), []operate.Decision{hang, hang}))
	hangs, err := operate.RecordsIn[*cassink.Tx](w.sink).Hangs(t.Context(), orders)
	if err != nil || len(hangs) != 2 {
		t.Errorf("%v, %v", hangs, err)
	}
}

// The fence is restored from a backup, and an operator sets it back under the epoch under which one had
// done so before.
func TestAnEraOfTheLostHistoryIsNotTakenForTheNewOne(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	apply := func() error {
		return w.applies(3, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			_, err := tx.Update(ctx, m, "list", add(fmt.Sprint(m.Offset)))
			return err
		})
	}
	must(t, apply())
	back, err := mem.Get(t.Context(), fenceKey)
	must(t, err)
	rewind := func() {
		seen, err := w.sink.Operator().Partition(t.Context(), orders)
		must(t, err)
		a := operate.NewAct(operate.ActRewind, seen.Fence, "anna", "again")
		a.To = &epoch.Position{Mark: epoch.NoMark}
		_, err = w.sink.Operator().Act(t.Context(), a)
		must(t, err)
	}
	rewind()
	w.claims()
	must(t, apply())
	now, _ := mem.Get(t.Context(), fenceKey)
	_, err = mem.Swap(t.Context(), now, back.Value, nil)
	must(t, err)
	sink, err := cassink.Open(t.Context(), mem, cassink.Options{})
	must(t, err)
	w = &owner{T: t, sink: sink, partition: orders}
	rewind()
	w.claims()
	if err := apply(); !errors.Is(err, epoch.ErrUnhealthy) || !errors.Is(err, guard.ErrFenceLost) {
		t.Errorf("%v", err)
	}
	rewind()
	w.claims()
	must(t, apply())
	if got := words(t, mem, "list"); got != "0 1 2 0 1 2 0 1 2" {
		t.Error(got)
	}
}

func TestAnActionThatTheOwnerIsNotNotifiedOfIsDone(t *testing.T) {
	t.Parallel()
	s := &failing{Store: memstore.New(), prefix: "epochfence/requests"}
	w := owns(t, s, orders)
	s.fails = 100
	a := operate.NewAct(operate.ActRewind, w.fence, "anna", "again")
	a.To = &epoch.Position{Offset: 7, Mark: epoch.NoMark}
	after, err := w.sink.Operator().Act(t.Context(), a)
	must(t, err)
	now, err := epoch.FenceOf(t.Context(), w.sink, orders)
	must(t, err)
	if after.Next != 7 || now != after {
		t.Errorf("the act says %+v, and the fence is %+v", after, now)
	}
	if s.fails == 100 {
		t.Error("the owner was notified")
	}
}
