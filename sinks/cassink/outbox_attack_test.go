package cassink_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func operates(t *testing.T, store cas.Store, e operate.OutboxEntry, kind operate.OutboxKind) {
	t.Helper()
	other, err := cassink.Open(t.Context(), store, cassink.Options{})
	must(t, err)
	must(t, other.Operator().DoOutbox(t.Context(), operate.OutboxAct{Kind: kind, Seen: e, By: "anna", Reason: "refused"}))
}

func TestTheEntryBehindADiscardedOneIsTheNextOfItsKey(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a", "b", "c")))
	var es []operate.OutboxEntry
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) (err error) {
		es, err = box.Scan(ctx, 0, 10)
		return err
	}))
	operates(t, store, es[1], operate.OutboxDiscard)
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		if _, err := box.Delete(ctx, []int64{es[0].ID}); err != nil {
			return err
		}
		got, err := box.Next(ctx, es[2].ID, map[string]int64{"k": es[0].ID})
		if k := keysOfEntries(got); !slices.Equal(k, []string{"c"}) {
			t.Errorf("Next: %q", k)
		}
		return err
	}))
}

func TestAScanIsFullAlsoWhereAnEntryWasDiscarded(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a", "b", "c")))
	es := left(t, s)
	operates(t, store, es[0], operate.OutboxDiscard)
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		got, err := box.Scan(ctx, 0, 2)
		if len(got) != 2 {
			t.Errorf("Scan of 2: %q", keysOfEntries(got))
		}
		return err
	}))
}

// lagsOnce answers the first Get of each entry's item as if it were not there yet.
type lagsOnce struct {
	cas.Store
	on   atomic.Bool
	hits atomic.Int32
}

func (l *lagsOnce) Get(ctx context.Context, key string) (cas.Item, error) {
	if l.on.Load() && strings.HasPrefix(key, "epochfence/outbox/") && l.hits.Add(1) == 1 {
		return cas.Item{Key: key}, nil
	}
	return l.Store.Get(ctx, key)
}

func TestAnEntryIsReadByItsTransactionAlsoIfTheStoreLags(t *testing.T) {
	t.Parallel()
	store := &lagsOnce{Store: memstore.New()}
	s, f := claims(t, store)
	store.on.Store(true)
	must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
		must(t, adding("first")(ctx, tx))
		must(t, adding("second")(ctx, tx))
		got, err := box.Scan(ctx, 0, 10)
		if k := keysOfEntries(got); !slices.Equal(k, []string{"first", "second"}) {
			t.Errorf("Scan: %q", k)
		}
		return err
	}))
}

// oldFence answers with the fence as it was, and hides the entries written since.
type oldFence struct {
	cas.Store
	mu    sync.Mutex
	fence *cas.Item
	left  int
}

func (l *oldFence) Get(ctx context.Context, key string) (cas.Item, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fence != nil && l.left > 0 {
		if strings.HasPrefix(key, "epochfence/outbox/") {
			l.left--
			return cas.Item{Key: key}, nil
		}
		if key == l.fence.Key {
			l.left--
			return *l.fence, nil
		}
	}
	return l.Store.Get(ctx, key)
}

func TestAStoreThatLagsHidesNoEntry(t *testing.T) {
	t.Parallel()
	store := &oldFence{Store: memstore.New()}
	s, f := claims(t, store)
	var fence cas.Item
	for it, err := range store.List(t.Context(), "epochfence/fence/") {
		must(t, err)
		fence = it
	}
	fence, err := store.Store.Get(t.Context(), fence.Key)
	must(t, err)
	must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error { return adding("a", "b")(ctx, tx) }))
	store.fence, store.left = &fence, 6
	must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
		got, err := box.Scan(ctx, 0, 10)
		if err == nil && len(got) != 2 {
			t.Errorf("Scan without an error: %q", keysOfEntries(got))
		}
		return nil
	}))
}

func TestARequestToRetryIsGoneWithTheTransactionThatReadIt(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	operates(t, store, left(t, s)[0], operate.OutboxRetry)
	id := left(t, s)[0].ID
	for n := range 3 {
		must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
			ids, err := box.Retries(ctx, []int64{id})
			if n > 0 && len(ids) > 0 {
				t.Errorf("again %v", ids)
			}
			return err
		}))
	}
	operates(t, store, left(t, s)[0], operate.OutboxRetry)
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		_, err := box.Delete(ctx, []int64{id})
		return err
	}))
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error { // whose entries wait
		ids, err := box.Retries(ctx, []int64{id + 1})
		if len(ids) > 0 {
			t.Errorf("%v are to be tried now", ids)
		}
		return err
	}))
	it, err := store.Get(t.Context(), "epochfence/requests")
	must(t, err)
	if strings.Contains(string(it.Value), "Retries") {
		t.Errorf("left for good: %s", it.Value)
	}
}

func TestATransactionAddsNoMoreThanFitsIntoAnOutbox(t *testing.T) {
	t.Parallel()
	s, f := claims(t, memstore.New())
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding(make([]string, cassink.MaxEntries+1)...))
	if !errors.Is(err, epoch.ErrTooLarge) || errors.Is(err, epoch.ErrTransient) {
		t.Errorf("it is tried for ever: %v", err)
	}
}

func TestWaitingForAnotherTransactionIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, f := claims(t, memstore.New())
		must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
			must(t, adding("x")(ctx, tx))
			_, err := box.Scan(ctx, 0, 1)
			must(t, err)
			short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
			defer stop()
			err = s.Commit(short, []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(context.Context, *cassink.Tx) error { return nil })
			if !errors.Is(err, epoch.ErrTransient) {
				t.Errorf("%v", err)
			}
			return nil
		}))
	})
}

func TestATransactionThatFailsAfterAScanLeavesNoItem(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	for range 3 {
		_ = holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
			must(t, adding("x")(ctx, tx))
			_, err := box.Scan(ctx, 0, 1)
			must(t, err)
			return errPoison
		})
	}
	if n := len(itemsOfEntries(t, store)); n != 0 {
		t.Errorf("%d items left", n)
	}
}

func TestAnAnswerToAnEntryThatIsDiscardedMeanwhileIsNotRecorded(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	e := left(t, s)[0]
	err := holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
		there, err := box.Delete(ctx, []int64{e.ID})
		if err != nil || len(there) != 1 {
			t.Errorf("%v %v", there, err)
		}
		operates(t, store, e, operate.OutboxDiscard)
		return adding("follow-up")(ctx, tx)
	})
	if got := keysOfEntries(left(t, s)); !errors.Is(err, epoch.ErrTransient) || len(got) > 0 {
		t.Errorf("%v, and %q are left", err, got)
	}
}

func TestAGoroutineOfAHandlerThatHasReturnedWritesNoFence(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, f := claims(t, memstore.New())
		must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
			must(t, adding("has the turn")(ctx, tx))
			_, err := box.Scan(ctx, 0, 1)
			must(t, err)
			err = holds(t, s, f, func(_ context.Context, tx *cassink.Tx, box cassink.Outbox) error {
				must(t, adding("waits")(ctx, tx))
				go func() { _, _ = box.Scan(t.Context(), 0, 1) }()
				synctest.Wait()
				return errPoison
			})
			if !errors.Is(err, errPoison) {
				t.Errorf("%v", err)
			}
			return nil
		}))
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		synctest.Wait()
		must(t, s.Commit(ctx, []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("message")))
	})
}

// A handler that adds, looks at its outbox, and then updates an item that has passed its message.
func TestAMessageThatWasPassedAndHasReadTheOutboxMovesThePosition(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	stamp := func(m epoch.Message) func(ctx context.Context, tx *cassink.Tx) error {
		return func(ctx context.Context, tx *cassink.Tx) error {
			_, err := tx.Update(ctx, m, "stock", add("w"))
			return err
		}
	}
	var backup cas.Item
	for it, err := range store.List(t.Context(), "epochfence/fence/") {
		must(t, err)
		backup = it
	}
	backup, err := store.Get(t.Context(), backup.Key)
	must(t, err)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, stamp(message(0))))
	g := f
	g.Next = 1
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(g, 1)}, epoch.TxOptions{}, stamp(message(1))))
	now, err := store.Get(t.Context(), backup.Key)
	must(t, err)
	_, err = store.Swap(t.Context(), now, backup.Value, backup.Note) // restored
	must(t, err)
	s, err = cassink.Open(t.Context(), store, cassink.Options{})
	must(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err = s.Commit(ctx, []epoch.Advance{advance(f, 2)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		must(t, adding("x")(ctx, tx))
		box, _ := tx.Outbox(orders)
		_, _, err := box.Count(ctx)
		must(t, err)
		return stamp(message(0))(ctx, tx)
	})
	if !errors.Is(err, epoch.ErrMoved) {
		t.Errorf("%v", err)
	}
}

// A relay begins while the first entry has its item, and the fence is about to be written.
func TestTheItemOfAnEntryThatIsAboutToBeCommittedStays(t *testing.T) {
	t.Parallel()
	store := &hooked{Store: memstore.New()}
	s, f := claims(t, store)
	store.key, store.do = "epochfence/fence/billing/orders/3", func() {
		must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
			_, err := box.Scan(ctx, 0, 10)
			return err
		}))
	}
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
}

func TestNothingIsDoneToTheOutboxThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	store := &failing{Store: memstore.New(), prefix: "epochfence/log/"}
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	store.fails = 100
	act := operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: left(t, s)[0], By: "anna", Reason: "refused"}
	if err := s.Operator().DoOutbox(t.Context(), act); err == nil {
		t.Error("the act is done")
	}
	if n := len(left(t, s)); n != 1 {
		t.Errorf("%d entries are left, want 1", n)
	}
	store.fails = 0
	must(t, s.Operator().DoOutbox(t.Context(), act))
	if n := len(left(t, s)); n != 0 {
		t.Errorf("%d entries are left, want none", n)
	}
	ds, err := s.Operator().History(t.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedOutboxDiscard}})
	if err != nil || len(ds) != 1 || ds[0].Entry != act.Seen.ID || ds[0].Claim != f.Claim {
		t.Errorf("the audit log is %+v, %v", ds, err)
	}
}
