package guard_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// overtaken is a store where others write an item just before the first write of a batch.
type overtaken struct {
	cas.Store
	key   string
	first func()
}

func (o *overtaken) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if seen.Key == o.key && o.first != nil {
		first := o.first
		o.first = nil
		first()
	}
	return o.Store.Swap(ctx, seen, value, note)
}

func place(offset epoch.Offset) epoch.Position {
	return epoch.Position{Offset: offset, Mark: epoch.NoMark}
}

// One apple is left, and messages of two partitions want it. Each takes it, and then writes down in an
// item of its own whether it has got it.
func TestAnItemIsNotWrittenBeforeTheOutcomesThatItsChangeMayDependOn(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	must(t, second(mem.Swap(t.Context(), cas.Item{Key: "stock"}, []byte("1"), nil)))
	take := func(old guard.State) (guard.State, []byte, error) {
		if string(old.Value) == "1" {
			return guard.Text("0"), []byte("got it"), nil
		}
		return old, []byte("sold out"), nil
	}
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	s := &overtaken{Store: mem, key: "stock", first: func() {
		must(t, second(guard.Apply(context.Background(), mem, "stock", theirs, take)))
	}}
	order := func() error {
		b := guard.Begin(s, at(1, 1))
		got, err := b.Update(t.Context(), place(1), "stock", take)
		must(t, err)
		must(t, second(b.Update(t.Context(), place(1), "order 1", func(guard.State) (guard.State, []byte, error) {
			return guard.Text(string(got)), nil, nil
		})))
		return b.Write(t.Context())
	}
	if err := order(); !errors.Is(err, guard.ErrOutcomeChanged) {
		t.Errorf("overtaken: %v", err)
	}
	must(t, order())
	if got := read(t, mem, "order 1"); string(got.Value) != "sold out" {
		t.Errorf("the order says %q, and the other partition's message has taken the apple", got.Value)
	}
}

// Message 0 takes an apple and ships it, if there is one. Message 1, in the same batch, changes the list of
// shipments, and the batch fails. Then another partition brings apples, and message 0 has one.
func TestAnItemTakesNoLaterMessageBeforeAnOutcomeIsWritten(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := &broken{Store: mem, key: "stock", fails: 1000}
	deliver := func() error {
		b := guard.Begin(s, at(1, 0))
		got, err := b.Update(t.Context(), place(0), "stock", func(old guard.State) (guard.State, []byte, error) {
			if len(old.Value) == 0 {
				return old, []byte("sold out"), nil
			}
			return guard.Text(string(old.Value[1:])), []byte("got it"), nil
		})
		if err == nil && string(got) == "got it" {
			_, err = b.Update(t.Context(), place(0), "shipping", add("0"))
		}
		if err != nil {
			return err
		}
		must(t, second(b.Update(t.Context(), place(1), "shipping", add("1"))))
		return b.Write(t.Context())
	}
	if err := deliver(); !errors.Is(err, guard.ErrDoubt) {
		t.Error(err)
	}
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	must(t, second(guard.Apply(t.Context(), mem, "stock", theirs, func(old guard.State) (guard.State, []byte, error) {
		return guard.Text(string(old.Value) + "ooo"), nil, nil
	})))
	s.fails = 0
	if err := deliver(); err != nil {
		t.Error(err)
	}
	if got := read(t, mem, "shipping"); string(got.Value) != "0 1" {
		t.Errorf("shipping has %q", got.Value)
	}
}

// Message 1 changes b by the outcome of a, and message 2 changes a by the outcome of b.
func TestItemsThatDependOnEachOtherAreWrittenInTurn(t *testing.T) {
	t.Parallel()
	s := &written{Store: memstore.New()}
	b := guard.Begin(s, at(1, 1))
	must(t, second(b.Update(t.Context(), place(1), "a", add("1"))))
	must(t, second(b.Update(t.Context(), place(1), "b", add("1"))))
	must(t, second(b.Update(t.Context(), place(2), "b", add("2"))))
	must(t, second(b.Update(t.Context(), place(2), "a", add("2"))))
	must(t, b.Write(t.Context()))
	if want := []string{"a=1", "b=1 2", "a=1 2"}; !slices.Equal(s.all, want) {
		t.Errorf("written: %q, want %q", s.all, want)
	}
}

func TestWithoutOutcomesItemsAreWrittenOnceAndTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what           string
		outcome        bool
		keys           func(n epoch.Offset) []string
		writes, rounds int
	}{
		{"one item", false, func(epoch.Offset) []string { return []string{"hot"} }, 1, 1},
		{"one item with outcomes", true, func(epoch.Offset) []string { return []string{"hot"} }, 1, 1},
		{"other items", false, func(n epoch.Offset) []string { return []string{fmt.Sprint(n)} }, 16, 1},
		{"two items", false, func(n epoch.Offset) []string { return []string{"hot", fmt.Sprint(n)} }, 17, 1},
		{"an outcome of one item for others", true, func(n epoch.Offset) []string { return []string{"hot", fmt.Sprint("no outcome ", n)} }, 17, 2},
		{"other items with outcomes", true, func(n epoch.Offset) []string { return []string{fmt.Sprint(n)} }, 16, 16},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := &written{Store: memstore.New(), takes: time.Second}
			b := guard.Begin(s, at(1, 0))
			for n := range epoch.Offset(16) {
				for _, key := range c.keys(n) {
					must(t, second(b.Update(t.Context(), place(n), key, func(guard.State) (guard.State, []byte, error) {
						if c.outcome && !strings.HasPrefix(key, "no outcome") {
							return guard.Text("x"), []byte("x"), nil
						}
						return guard.Text("x"), nil, nil
					})))
				}
			}
			begin := time.Now()
			must(t, b.Write(t.Context()))
			if took := int(time.Since(begin).Seconds()); len(s.all) != c.writes || took != c.rounds {
				t.Errorf("%s: %d writes, %d after one another; want %d and %d", c.what, len(s.all), took, c.writes, c.rounds)
			}
		})
	}
}

// written is a store that knows what was written, and takes its time.
type written struct {
	cas.Store
	takes time.Duration
	mu    sync.Mutex
	all   []string
}

func (s *written) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	<-time.After(s.takes)
	s.mu.Lock()
	s.all = append(s.all, seen.Key+"="+string(value))
	s.mu.Unlock()
	return s.Store.Swap(ctx, seen, value, note)
}

func TestAChangeThatReadsAnotherItemMayBeMadeAgain(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	must(t, second(mem.Swap(t.Context(), cas.Item{Key: "price"}, []byte("7"), nil)))
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	s := &overtaken{Store: mem, key: "bill", first: func() {
		must(t, second(guard.Apply(context.Background(), mem, "bill", theirs, add("theirs"))))
	}}
	b := guard.Begin(s, at(1, 1))
	must(t, second(b.Update(t.Context(), place(1), "bill", func(old guard.State) (guard.State, []byte, error) {
		price, err := b.Read(t.Context(), "price")
		return guard.Text(string(old.Value) + " " + string(price.Value)), nil, err
	})))
	must(t, b.Write(t.Context()))
	if got, err := guard.Read(t.Context(), mem, "bill"); err != nil || string(got.Value) != "theirs 7" {
		t.Errorf("%q, %v", got.Value, err)
	}
}

// A change is called again on another goroutine, where nobody catches a panic.
func TestAChangeThatDoesNotReturnWhenItIsMadeAgainIsNotTakenForWritten(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(){"panic": func() { panic("an item as I did not expect it") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			theirs := at(1, 7)
			theirs.Partition.Number = 4
			s := &overtaken{Store: mem, key: "stock", first: func() {
				must(t, second(guard.Apply(context.Background(), mem, "stock", theirs, add("theirs"))))
			}}
			b := guard.Begin(s, at(1, 1))
			must(t, second(b.Update(t.Context(), place(1), "stock", func(old guard.State) (guard.State, []byte, error) {
				if old.Exists {
					ends()
				}
				return guard.Text("ours"), nil, nil
			})))
			if err := b.Write(t.Context()); !errors.Is(err, guard.ErrOutcomeChanged) {
				t.Errorf("%v, and the item is %q", err, read(t, mem, "stock").Value)
			}
		})
	}
}

func TestChangesAreMadeAgainAsOftenAsOthersAreFaster(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	s := &overtaken{Store: mem, key: "stock"}
	n := 0
	b := guard.Begin(s, at(1, 1))
	must(t, second(b.Update(t.Context(), place(1), "stock", func(old guard.State) (guard.State, []byte, error) {
		if n++; n < 4 {
			s.first = func() {
				theirs.Offset++
				must(t, second(guard.Apply(context.Background(), mem, "stock", theirs, add(fmt.Sprint(n)))))
			}
		}
		return guard.Text(string(old.Value) + " ours"), nil, nil
	})))
	must(t, b.Write(t.Context()))
	if got := read(t, mem, "stock"); string(got.Value) != "1 2 3 ours" {
		t.Errorf("%q", got.Value)
	}
}

// Handlers reuse buffers, and write into what Update has returned.
func TestWhatAChangeReturnsIsCopied(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	b := guard.Begin(s, at(1, 1))
	buffer := make([]byte, 0, 8)
	for offset, key := range []string{"a", "b"} {
		outcome, err := b.Update(t.Context(), place(epoch.Offset(offset+1)), key, func(guard.State) (guard.State, []byte, error) {
			buffer = append(buffer[:0], key...)
			return guard.State{Exists: true, Value: buffer}, buffer, nil
		})
		must(t, err)
		outcome[0] = 'x'
	}
	must(t, b.Write(t.Context()))
	again := guard.Begin(s, at(1, 1))
	for offset, key := range []string{"a", "b"} {
		if got := read(t, s, key); string(got.Value) != key {
			t.Errorf("%s is %q", key, got.Value)
		}
		outcome, err := again.Update(t.Context(), place(epoch.Offset(offset+1)), key, add("again"))
		if err != nil || string(outcome) != key {
			t.Errorf("the outcome of %s is %q, %v", key, outcome, err)
		}
	}
}

// The changes of a message share variables of its handler, as those of one goroutine may.
func TestChangesAreNotMadeAgainBesideEachOther(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	b := guard.Begin(mem, at(1, 1))
	var under atomic.Int32
	total := 0
	for _, key := range []string{"a", "b", "c", "d"} {
		must(t, second(b.Update(t.Context(), place(1), key, func(old guard.State) (guard.State, []byte, error) {
			if under.Add(1) > 1 {
				t.Error("two at a time")
			}
			<-time.After(time.Millisecond)
			under.Add(-1)
			total += len(old.Value)
			return guard.Text("ours"), nil, nil
		})))
		theirs := at(1, 7)
		theirs.Partition.Number = 4
		must(t, second(guard.Apply(t.Context(), mem, key, theirs, add("theirs"))))
	}
	must(t, b.Write(t.Context()))
	if total != 4*len("theirs") {
		t.Errorf("%d", total)
	}
}

func TestAChangeThatReadsItsOwnItemWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	b := guard.Begin(memstore.New(), at(1, 1))
	_, err := b.Update(ctx, place(1), "stock", func(old guard.State) (guard.State, []byte, error) {
		_, err := b.Read(ctx, "stock")
		return old, nil, err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
func TestABatchWritesEachItemOnceAtItsEnd(t *testing.T) {
	t.Parallel()
	s := &counted{Store: memstore.New()}
	b := guard.Begin(s, at(1, 10))
	for offset := epoch.Offset(10); offset < 15; offset++ {
		outcome, err := b.Update(t.Context(), place(offset), "stock", add(fmt.Sprint(offset)))
		if want := fmt.Sprint(offset - 9); err != nil || string(outcome) != want {
			t.Fatalf("%q, %v; want %s", outcome, err, want)
		}
	}
	if state, err := b.Read(t.Context(), "stock"); err != nil || string(state.Value) != "10 11 12 13 14" {
		t.Errorf("the batch sees %q, %v", state.Value, err)
	}
	if got := read(t, s, "stock"); got.Exists || s.swaps != 0 {
		t.Errorf("others see %q before the end, after %d writes", got.Value, s.swaps)
	}
	must(t, b.Write(t.Context()))
	if got := read(t, s, "stock"); string(got.Value) != "10 11 12 13 14" || s.swaps != 1 {
		t.Errorf("others see %q at the end, after %d writes", got.Value, s.swaps)
	}
	again := guard.Begin(s, at(2, 10))
	for offset := epoch.Offset(10); offset < 15; offset++ {
		outcome, err := again.Update(t.Context(), place(offset), "stock", add("again"))
		if want := fmt.Sprint(offset - 9); err != nil || string(outcome) != want {
			t.Fatalf("again: %q, %v; want %s", outcome, err, want)
		}
	}
	must(t, again.Write(t.Context()))
	if s.swaps != 1 {
		t.Errorf("%d writes", s.swaps)
	}
}

type counted struct {
	cas.Store
	swaps int
}

func (c *counted) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	c.swaps++
	return c.Store.Swap(ctx, seen, value, note)
}

func TestABatchRefusesWhatWouldNotBeExact(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	b := guard.Begin(s, at(1, 10))
	must(t, second(b.Update(t.Context(), place(12), "stock", add("12"))))
	if _, err := b.Update(t.Context(), place(12), "stock", add("12")); !errors.Is(err, guard.ErrTwice) {
		t.Errorf("twice: %v", err)
	}
	if _, err := b.Update(t.Context(), place(11), "stock", add("11")); !errors.Is(err, guard.ErrOrder) {
		t.Errorf("an earlier message after a later one: %v", err)
	}
	must(t, b.Write(t.Context()))
	b = guard.Begin(s, at(1, 10))
	if _, err := b.Update(t.Context(), place(11), "stock", add("11")); !errors.Is(err, guard.ErrNew) {
		t.Errorf("one that did not change the item before: %v", err)
	}
	must(t, second(b.Update(t.Context(), place(12), "stock", add("12"))))
	if _, err := b.Update(t.Context(), place(12), "stock", add("12")); !errors.Is(err, guard.ErrTwice) {
		t.Errorf("twice, of a message that was applied before: %v", err)
	}
}

func TestAnOutcomeThatOthersHaveChangedIsNotWritten(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	b := guard.Begin(s, at(1, 10))
	must(t, second(b.Update(t.Context(), place(10), "stock", add("ours"))))
	other := at(7, 3)
	other.Partition.Number++
	must(t, second(guard.Apply(t.Context(), s, "stock", other, add("theirs"))))
	if err := b.Write(t.Context()); !errors.Is(err, guard.ErrOutcomeChanged) {
		t.Errorf("%v", err)
	}
	if got := read(t, s, "stock"); string(got.Value) != "theirs" {
		t.Errorf("%q", got.Value)
	}
}

func TestAChangeWithoutAnOutcomeIsMadeAgainOverThoseOfOthers(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	b := guard.Begin(s, at(1, 10))
	quiet := func(old guard.State) (guard.State, []byte, error) {
		return guard.Text(string(old.Value) + "ours"), nil, nil
	}
	must(t, second(b.Update(t.Context(), place(10), "stock", quiet)))
	other := at(7, 3)
	other.Partition.Number++
	must(t, second(guard.Apply(t.Context(), s, "stock", other, add("theirs"))))
	must(t, b.Write(t.Context()))
	if got := read(t, s, "stock"); string(got.Value) != "theirsours" {
		t.Errorf("%q", got.Value)
	}
}

func TestTheReplayOfADeadLetterChangesAnItemOnce(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	must(t, second(guard.Apply(t.Context(), s, "stock", at(2, 50), add("50"))))
	replay := at(2, 10)
	replay.Replay = 77
	for range 2 {
		outcome, err := guard.Apply(t.Context(), s, "stock", replay, add("10"))
		if err != nil || string(outcome) != "2" {
			t.Errorf("%q, %v", outcome, err)
		}
	}
	must(t, second(guard.Apply(t.Context(), s, "stock", at(2, 51), add("51"))))
	if got := read(t, s, "stock"); string(got.Value) != "50 10 51" {
		t.Errorf("%q", got.Value)
	}
}

// An owner that was paused writes after its successor has given the message up.
func TestADeadLetterThatWasAppliedAfterAllIsNotReplayed(t *testing.T) {
	t.Parallel()
	s, dead := memstore.New(), guard.DeadLetter{ID: 77, Offset: 10}
	late := guard.Begin(s, at(1, 10))
	must(t, second(late.Update(t.Context(), place(10), "stock", add("10"))))
	must(t, late.Write(t.Context()))
	for n, later := range []epoch.Offset{11, 12} { // the first remembers, and the second still does
		b := guard.Begin(s, at(2, later), dead)
		must(t, second(b.Update(t.Context(), place(later), "stock", add(fmt.Sprint(later)))))
		must(t, b.Write(t.Context()))
		replay := at(2, 12)
		replay.Replay = dead.ID
		r := guard.Begin(s, replay, dead)
		outcome, err := r.Update(t.Context(), place(10), "stock", add("10"))
		if err != nil || string(outcome) != "1" {
			t.Errorf("after %d: %q, %v", n+1, outcome, err)
		}
		must(t, r.Write(t.Context()))
	}
	if got := read(t, s, "stock"); string(got.Value) != "10 11 12" {
		t.Errorf("%q", got.Value)
	}
}

func TestAMessageOfAHandlerHasItsStamp(t *testing.T) {
	t.Parallel()
	f := epoch.Fence{Origin: epoch.Origin{Partition: orders, Log: "log"}, Epoch: 9, SetUnder: 4}
	m := epoch.Message{Partition: orders, Offset: 3, Mark: 7, Under: &f, Replay: 5}
	s, err := guard.StampOf(m)
	if want := (guard.Stamp{Partition: orders, Log: "log", Era: 4, Epoch: 9, Offset: 3, Mark: 7, Replay: 5}); err != nil || s != want {
		t.Errorf("%+v, %v; want %+v", s, err, want)
	}
	m.Under = nil
	if _, err := guard.At(memstore.New(), m).Update(t.Context(), "stock", add("one")); err == nil {
		t.Error("a message that no consumer has handed out has changed an item")
	}
}

// inOneRequest is a store that reads items in one request, after what happens meanwhile.
type inOneRequest struct {
	*memstore.Store
	keys      [][]string
	meanwhile func()
	fail      error
}

func (s *inOneRequest) GetAll(ctx context.Context, keys []string) (items []cas.Item, err error) {
	s.keys = append(s.keys, keys)
	s.meanwhile()
	for _, key := range keys {
		item, err := s.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, s.fail
}

func TestItemsAreLoadedInOneRequestAndThoseThatTheBatchHasAreKept(t *testing.T) {
	t.Parallel()
	s := &inOneRequest{Store: memstore.New(), meanwhile: func() {}}
	must(t, second(s.Swap(t.Context(), cas.Item{Key: "a"}, []byte("theirs"), nil)))
	b := guard.Begin(s, at(1, 1))
	must(t, second(b.Update(t.Context(), place(1), "a", add("1"))))
	must(t, b.Load(t.Context(), "c", "a", "b", "c"))
	must(t, b.Load(t.Context(), "a", "b"))
	if got := fmt.Sprint(s.keys); got != "[[b c]]" {
		t.Errorf("asked for %s", got)
	}
	must(t, second(b.Update(t.Context(), place(2), "b", add("2"))))
	must(t, b.Write(t.Context()))
	for key, want := range map[string]string{"a": "theirs 1", "b": "2", "c": ""} {
		if got := read(t, s, key); string(got.Value) != want {
			t.Errorf("%s is %q, want %q", key, got.Value, want)
		}
	}
	s.fail = errors.New("too many keys")
	b = guard.Begin(s, at(1, 3))
	must(t, b.Load(t.Context(), "a", "b"))
	if got, err := b.Read(t.Context(), "a"); err != nil || string(got.Value) != "theirs 1" {
		t.Errorf("after a failure a is %q, %v", got.Value, err)
	}
}

func TestAnItemThatIsChangedWhileItIsLoadedKeepsTheChange(t *testing.T) {
	t.Parallel()
	s := &inOneRequest{Store: memstore.New()}
	b := guard.Begin(s, at(1, 1))
	s.meanwhile = func() { must(t, second(b.Update(t.Context(), place(1), "stock", add("1")))) }
	must(t, b.Load(t.Context(), "stock"))
	must(t, b.Write(t.Context()))
	if got := read(t, s, "stock"); string(got.Value) != "1" {
		t.Errorf("the item is %q", got.Value)
	}
}
