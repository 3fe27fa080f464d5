package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
)

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

func at(e epoch.Epoch, offset epoch.Offset) guard.Stamp {
	return guard.Stamp{Partition: orders, Log: "log", Epoch: e, Offset: offset, Mark: epoch.NoMark}
}

// add appends a word, and returns how many there are.
func add(word string) guard.Change {
	return func(old guard.State) (guard.State, []byte, error) {
		words := append(strings.Fields(string(old.Value)), word)
		return guard.Text(strings.Join(words, " ")), []byte(strconv.Itoa(len(words))), nil
	}
}

func remove(guard.State) (guard.State, []byte, error) { return guard.State{}, []byte("gone"), nil }

func read(t *testing.T, s cas.Store, key string) guard.State {
	t.Helper()
	state, err := guard.Read(t.Context(), s, key)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestAMessageThatIsDeliveredAgainChangesNothingAndHasTheSameOutcome(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	for _, e := range []epoch.Epoch{1, 1, 2, 7} {
		outcome, err := guard.Apply(t.Context(), s, "stock", at(e, 10), add("ten"))
		if err != nil || string(outcome) != "1" {
			t.Fatalf("%q, %v", outcome, err)
		}
	}
	if got := read(t, s, "stock"); string(got.Value) != "ten" {
		t.Errorf("%q", got.Value)
	}
}

func TestAnOwnerThatWakesUpIsStoppedWhereItsSuccessorHasBeen(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	must(t, second(guard.Apply(t.Context(), s, "stock", at(2, 10), add("ten"))))
	for _, offset := range []epoch.Offset{9, 10, 11} {
		if _, err := guard.Apply(t.Context(), s, "stock", at(1, offset), add("zombie")); !errors.Is(err, guard.ErrStale) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	if _, err := guard.Apply(t.Context(), s, "stock", at(2, 9), add("nine")); !errors.Is(err, guard.ErrPassed) {
		t.Errorf("a message before: %v", err)
	}
	if got := read(t, s, "stock"); string(got.Value) != "ten" {
		t.Errorf("%q", got.Value)
	}
}

func TestADeletedItemRemembersWhoDeletedIt(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	must(t, second(guard.Apply(t.Context(), s, "stock", at(1, 1), add("one"))))
	must(t, second(guard.Apply(t.Context(), s, "stock", at(1, 2), remove)))
	if got := read(t, s, "stock"); got.Exists || len(got.Value) > 0 {
		t.Errorf("%+v", got)
	}
	outcome, err := guard.Apply(t.Context(), s, "stock", at(2, 2), remove)
	if err != nil || string(outcome) != "gone" {
		t.Errorf("again: %q, %v", outcome, err)
	}
	if _, err := guard.Apply(t.Context(), s, "stock", at(2, 1), add("one")); !errors.Is(err, guard.ErrPassed) {
		t.Errorf("the message before the deletion: %v", err)
	}
	must(t, second(guard.Apply(t.Context(), s, "stock", at(2, 3), func(old guard.State) (guard.State, []byte, error) {
		if old.Exists {
			t.Error("the change sees an item")
		}
		return guard.Text("three"), nil, nil
	})))
	if got := read(t, s, "stock"); string(got.Value) != "three" {
		t.Errorf("%+v", got)
	}
}

func TestPartitionsChangeOneItemEachUnderItsOwnStamp(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	for n := range int32(guard.MaxPartitions) {
		stamp := at(1, epoch.Offset(100-n))
		stamp.Partition.Number = n
		for range 2 {
			must(t, second(guard.Apply(t.Context(), s, "stock", stamp, add(fmt.Sprint(n)))))
		}
	}
	if got := strings.Fields(string(read(t, s, "stock").Value)); len(got) != guard.MaxPartitions {
		t.Errorf("%d changes", len(got))
	}
	stamp := at(1, 1)
	stamp.Partition.Topic = "another"
	if _, err := guard.Apply(t.Context(), s, "stock", stamp, add("x")); !errors.Is(err, guard.ErrPartitions) {
		t.Errorf("one more: %v", err)
	}
}

func TestAnErrorOfTheChangeWritesNothingAndTheMessageMayGoOn(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	soldOut := errors.New("sold out")
	m := guard.New(s, at(1, 1))
	_, err := m.Update(t.Context(), "stock", func(guard.State) (guard.State, []byte, error) { return guard.Text("x"), nil, soldOut })
	if !errors.Is(err, soldOut) || m.Err() != nil || read(t, s, "stock").Exists {
		t.Errorf("%v, %v", err, m.Err())
	}
	must(t, second(m.Update(t.Context(), "other", add("one"))))
	if err := m.Err(); err != nil {
		t.Error(err)
	}
}

func TestAMessageDoesNotChangeAnItemTwice(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	m := guard.New(s, at(1, 1))
	must(t, second(m.Update(t.Context(), "stock", add("one"))))
	if _, err := m.Update(t.Context(), "stock", add("two")); !errors.Is(err, guard.ErrTwice) {
		t.Errorf("twice: %v", err)
	}
	if _, err := m.Update(t.Context(), "other", add("three")); !errors.Is(err, guard.ErrTwice) || !errors.Is(m.Err(), guard.ErrTwice) {
		t.Errorf("afterwards: %v, %v", err, m.Err())
	}
}

func TestOutcomesHaveALimit(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	long := func(n int) guard.Change {
		return func(guard.State) (guard.State, []byte, error) { return guard.Text("x"), make([]byte, n), nil }
	}
	if _, err := guard.Apply(t.Context(), s, "stock", at(1, 1), long(guard.MaxOutcome+1)); !errors.Is(err, guard.ErrOutcome) {
		t.Errorf("%v", err)
	}
	must(t, second(guard.Apply(t.Context(), s, "stock", at(1, 1), long(guard.MaxOutcome))))
}

// broken is a store whose answers to writes are lost.
type broken struct {
	cas.Store
	lands bool
	fails int
	key   string // of the writes that fail, or all
}

var errLost = errors.New("the connection was lost")

func (b *broken) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if b.fails == 0 || b.key != "" && seen.Key != b.key {
		return b.Store.Swap(ctx, seen, value, note)
	}
	b.fails--
	if b.lands {
		if _, err := b.Store.Swap(ctx, seen, value, note); err != nil {
			return cas.Item{}, err
		}
	}
	return cas.Item{}, errLost
}

func TestAChangeWhoseAnswerWasLostIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, lands := range []bool{true, false} {
		s := &broken{Store: memstore.New(), lands: lands, fails: 2}
		outcome, err := guard.Apply(t.Context(), s, "stock", at(1, 1), add("one"))
		if err != nil || string(outcome) != "1" {
			t.Errorf("%q, %v", outcome, err)
		}
		if got := read(t, s, "stock"); string(got.Value) != "one" {
			t.Errorf("%q", got.Value)
		}
	}
}

func TestAStoreThatDoesNotAnswerLeavesDoubtAndStopsTheMessage(t *testing.T) {
	t.Parallel()
	s := &broken{Store: memstore.New(), fails: 1000}
	m := guard.New(s, at(1, 1))
	if _, err := m.Update(t.Context(), "stock", add("one")); !errors.Is(err, guard.ErrDoubt) || !errors.Is(err, errLost) {
		t.Errorf("%v", err)
	}
	s.fails = 0
	if _, err := m.Update(t.Context(), "other", add("one")); !errors.Is(err, guard.ErrDoubt) || read(t, s, "other").Exists {
		t.Errorf("afterwards: %v", err)
	}
}

// A refusal concerns its own request: the one before it, whose answer was lost, may still be carried out.
func TestAStoreThatIsFullAfterAWriteInDoubtLeavesTheDoubt(t *testing.T) {
	t.Parallel()
	for fails, want := range map[int]bool{0: false, 1: true} {
		s := &full{broken{Store: memstore.New(), fails: fails}}
		_, err := guard.Apply(t.Context(), s, "stock", at(1, 1), add("one"))
		if !errors.Is(err, cas.ErrFull) || errors.Is(err, guard.ErrDoubt) != want {
			t.Errorf("full after %d writes in doubt: %v", fails, err)
		}
	}
}

// full is a store that is full once its broken answers are over.
type full struct{ broken }

func (f *full) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if f.fails == 0 {
		return cas.Item{}, cas.ErrFull
	}
	return f.broken.Swap(ctx, seen, value, note)
}

func TestANoteOfAnotherProgramIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	must(t, second(s.Swap(t.Context(), cas.Item{Key: "stock"}, []byte("x"), []byte("theirs"))))
	if _, err := guard.Apply(t.Context(), s, "stock", at(1, 1), add("one")); err == nil || !strings.Contains(err.Error(), "not one of guard's") {
		t.Errorf("%v", err)
	}
}

func TestAnItemWithoutANoteIsChangedAsItIs(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	must(t, second(s.Swap(t.Context(), cas.Item{Key: "stock"}, []byte("old"), nil)))
	must(t, second(guard.Apply(t.Context(), s, "stock", at(1, 1), add("one"))))
	if got := read(t, s, "stock"); string(got.Value) != "old one" {
		t.Errorf("%q", got.Value)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

// together is a store that answers Get once two calls wait for it.
type together struct {
	*memstore.Store
	both  sync.WaitGroup
	reads atomic.Int32
}

func (s *together) Get(ctx context.Context, key string) (cas.Item, error) {
	if s.reads.Add(1) <= 2 {
		s.both.Done()
		s.both.Wait()
	}
	return s.Store.Get(ctx, key)
}

func TestItemsAreLoadedBesideEachOtherAndOnlyThoseThatAreChangedAreWritten(t *testing.T) {
	t.Parallel()
	s := &together{Store: memstore.New()}
	s.both.Add(2)
	b := guard.Begin(s, at(1, 10))
	must(t, b.Load(t.Context(), "a", "b", "a"))
	must(t, second(b.Update(t.Context(), epoch.Position{Offset: 10, Mark: epoch.NoMark}, "a", add("ten"))))
	if n := s.reads.Load(); n != 2 {
		t.Errorf("%d reads, want 2", n)
	}
	must(t, b.Write(t.Context()))
	if a, b := read(t, s.Store, "a"), read(t, s.Store, "b"); string(a.Value) != "ten" || b.Exists {
		t.Errorf("%+v, %+v", a, b)
	}
	if err := b.Load(t.Context(), "a", ""); !errors.Is(err, cas.ErrKey) {
		t.Errorf("an impossible key: %v", err)
	}
}

// unread is a store whose first read is old, and which answers none after the second.
type unread struct {
	cas.Store
	old   cas.Item
	reads int
}

var errAway = errors.New("the store is away")

func (u *unread) Get(ctx context.Context, key string) (cas.Item, error) {
	switch u.reads++; u.reads {
	case 1:
		return u.old, nil
	case 2:
		return u.Store.Get(ctx, key)
	}
	return cas.Item{}, errAway
}

func TestAnErrorOfTheStoreIsTheMessagesThoughTheChangeHadDeclinedBefore(t *testing.T) {
	t.Parallel()
	s := &unread{Store: memstore.New()}
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	must(t, second(guard.Apply(t.Context(), s.Store, "stock", theirs, add("a"))))
	old, err := s.Store.Get(t.Context(), "stock")
	must(t, err)
	theirs.Offset++
	must(t, second(guard.Apply(t.Context(), s.Store, "stock", theirs, add("b"))))
	s.old = old
	m := guard.New(s, at(5, 10))
	_, err = m.Update(t.Context(), "stock", func(old guard.State) (guard.State, []byte, error) {
		if strings.Contains(string(old.Value), "b") {
			return guard.State{}, nil, errors.New("sold out")
		}
		return guard.Text("mine"), nil, nil
	})
	if !errors.Is(err, errAway) || !errors.Is(m.Err(), errAway) {
		t.Errorf("%v, after %d reads; the message's error is %v", err, s.reads, m.Err())
	}
}

// displaced is a store in which another program puts something else in the place of an item that was read.
type displaced struct {
	cas.Store
	reads atomic.Int64
}

func (s *displaced) Get(ctx context.Context, key string) (cas.Item, error) {
	if s.reads.Add(1) > 1 {
		return cas.Item{}, fmt.Errorf("get %q: %w: it is a list", key, cas.ErrForeign)
	}
	return s.Store.Get(ctx, key)
}

func (s *displaced) Swap(context.Context, cas.Item, []byte, []byte) (cas.Item, error) {
	return cas.Item{}, cas.ErrConflict
}

func TestWhatAnotherProgramHasWrittenEndsAChangeAtOnce(t *testing.T) {
	t.Parallel()
	s := &displaced{Store: memstore.New()}
	for range 2 {
		_, err := guard.Apply(t.Context(), s, "stock", at(1, 10), add("ten"))
		if !errors.Is(err, cas.ErrForeign) || errors.Is(err, guard.ErrDoubt) {
			t.Errorf("err = %v, want %q", err, cas.ErrForeign)
		}
	}
	if n := s.reads.Load(); n != 3 {
		t.Errorf("%d reads, want 3", n)
	}
}
