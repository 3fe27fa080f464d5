package cassink_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// owner is a sink that has claimed a partition.
type owner struct {
	*testing.T
	sink      *cassink.Sink
	partition epoch.Partition
	fence     epoch.Fence
}

func owns(t *testing.T, s cas.Store, p epoch.Partition) *owner {
	t.Helper()
	sink, err := cassink.Open(t.Context(), s, cassink.Options{})
	must(t, err)
	o := epoch.Origin{Partition: p, Log: "log", Source: "source"}
	at := epoch.Position{Mark: epoch.NoMark}
	must(t, sink.Seed(t.Context(), []epoch.Start{{Origin: o, Next: at, Earliest: at}}))
	w := &owner{T: t, sink: sink, partition: p}
	w.claims()
	return w
}

func (w *owner) claims() {
	w.Helper()
	seen, err := w.sink.Fence(w.Context(), w.partition)
	must(w.T, err)
	w.fence, err = w.sink.Claim(w.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 1, Owner: "owner"}))
	must(w.T, err)
}

// applies commits the messages before an offset, one in each call.
func (w *owner) applies(to epoch.Offset, handle func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error) error {
	a := epoch.Advance{Partition: w.fence.Partition, Claim: w.fence.Claim, From: w.fence.Next, To: to, Mark: epoch.NoMark}
	var calls []func(context.Context, *cassink.Tx) error
	for offset := a.From; offset < to; offset++ {
		m := epoch.Message{Partition: w.fence.Partition, Offset: offset, Mark: epoch.NoMark}
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error { return handle(ctx, tx, m) })
	}
	err := w.sink.Commit(w.Context(), []epoch.Advance{a}, calls...)
	if err == nil {
		w.fence.Next = to
	}
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func words(t *testing.T, s cas.Store, key string) string {
	t.Helper()
	state, err := guard.Read(t.Context(), s, key)
	must(t, err)
	return string(state.Value)
}

// No store is at fault, so the outcome is not in doubt, and the handler's mistake is the message's.
func TestAMistakeOfTheHandlerIsNoDoubt(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	for name, of := range map[string]func(m *epoch.Message, key *string){
		"another partition": func(m *epoch.Message, _ *string) { m.Partition.Number++ },
		"another message":   func(m *epoch.Message, _ *string) { m.Offset += 100 },
		"a dead letter":     func(m *epoch.Message, _ *string) { m.Replay = 7 },
		"the sink's fence":  func(_ *epoch.Message, key *string) { *key = "epochfence/fence/billing/orders/3" },
	} {
		w := owns(t, s, orders)
		before, err := s.Get(t.Context(), "epochfence/fence/billing/orders/3")
		must(t, err)
		err = w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			_, err := tx.Update(ctx, m, "mine", add("one"))
			must(t, err)
			key := "item"
			of(&m, &key)
			_, _ = tx.Update(ctx, m, key, add("x"))
			return nil
		})
		var call *epoch.CallError
		if !errors.As(err, &call) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: %v", name, err)
		}
		if got := words(t, s, "mine") + words(t, s, "item"); got != "" {
			t.Errorf("%s: %q", name, got)
		}
		if after, err := s.Get(t.Context(), before.Key); err != nil || after.Version != before.Version {
			t.Errorf("%s: the fence is %q, %v", name, after.Value, err)
		}
	}
}

// A goroutine that the handler does not wait for is in the middle of an Update when the handler returns.
func TestAHandlerThatDoesNotWaitForItsUpdateFails(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	w := owns(t, s, orders)
	changing, goOn := make(chan struct{}), make(chan struct{})
	var stray sync.WaitGroup
	var got error
	var once sync.Once
	err := w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		stray.Go(func() {
			_, got = tx.Update(ctx, m, "item", func(old guard.State) (guard.State, []byte, error) {
				once.Do(func() {
					close(changing)
					<-goOn
				})
				return guard.Text("changed"), nil, nil
			})
		})
		<-changing
		return nil
	})
	close(goOn)
	stray.Wait()
	var call *epoch.CallError
	if !errors.As(err, &call) || words(t, s, "item") != "" {
		t.Errorf("commit: %v, and the item is %q; Update: %v", err, words(t, s, "item"), got)
	}
}

// failing refuses writes of an item, as often as wanted.
type failing struct {
	cas.Store
	mu     sync.Mutex
	prefix string
	fails  int
}

func (f *failing) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	f.mu.Lock()
	fails := f.fails > 0 && strings.HasPrefix(seen.Key, f.prefix)
	if fails {
		f.fails--
	}
	f.mu.Unlock()
	if fails {
		return cas.Item{}, errLost
	}
	return f.Store.Swap(ctx, seen, value, note)
}

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
		found, err := w.sink.Requests(t.Context(), []epoch.Partition{orders})
		if err != nil || len(found.Replays) != 1 {
			t.Fatalf("%s was not written: %v, %v", prefix, found.Replays, err)
		}
		l, err = o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: mustGet(t, o, l.ID), By: "anna", Reason: "not yet"})
		must(t, err)
	}
}

func mustGet(t *testing.T, o *cassink.Operator, id int64) operate.DeadLetter {
	t.Helper()
	l, err := o.DeadLetter(t.Context(), id)
	must(t, err)
	return l
}

// small is a store with small notes and values.
type small struct {
	cas.Store
	f cas.Facts
}

func (s small) Facts(ctx context.Context) (cas.Facts, error) {
	f, err := s.Store.Facts(ctx)
	f.MaxKey, f.MaxValue, f.MaxNote = s.f.MaxKey, s.f.MaxValue, s.f.MaxNote
	return f, err
}

func (s small) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := s.f.Check(seen.Key, value, note); err != nil {
		return cas.Item{}, err
	}
	return s.Store.Swap(ctx, seen, value, note)
}

func sets(ctx context.Context, tx *cassink.Tx, m epoch.Message, key string) error {
	_, err := tx.Update(ctx, m, key, func(guard.State) (guard.State, []byte, error) { return guard.Text("x"), nil, nil })
	return err
}

func TestTheChangesOfOnePartitionLeaveRoomInTheNoteForOthers(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := small{mem, cas.Facts{MaxNote: 64 << 10}}
	w := owns(t, s, orders)
	share := 0
	for n := epoch.Offset(16384); n > 0; n /= 2 {
		err := w.applies(n, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return sets(ctx, tx, m, "hot")
		})
		if err == nil {
			share = int(n)
			break
		}
		if !errors.Is(err, epoch.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	if share < 64 {
		t.Errorf("only %d messages fit", share)
	}
	for n := range int32(20) {
		other := orders
		other.Number = 100 + n
		v := owns(t, s, other)
		for n := epoch.Offset(1024); ; n /= 2 {
			err := v.applies(n, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "hot") })
			if err == nil {
				break
			} else if n == 1 {
				t.Fatal(err)
			}
		}
	}
}

// An item is not written because of another one that is too large.
func TestATransactionThatIsTooLargeWritesNothing(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, small{mem, cas.Facts{MaxValue: 1500}}, orders)
	err := w.applies(3, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		_, err := tx.Update(ctx, m, fmt.Sprint("item", m.Offset), func(guard.State) (guard.State, []byte, error) {
			return guard.Text(strings.Repeat("x", 1000*int(m.Offset))), nil, nil
		})
		return err
	})
	if !errors.Is(err, epoch.ErrTooLarge) || words(t, mem, "item0")+words(t, mem, "item1") != "" {
		t.Errorf("%v", err)
	}
}

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
	seen, err := w.sink.Fence(t.Context(), orders)
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
	f, err := sink.Fence(t.Context(), orders)
	must(t, err)
	err = sink.Commit(t.Context(), []epoch.Advance{{Partition: orders, Claim: f.Claim, From: f.Next, To: 4, Mark: epoch.NoMark}}, func(ctx context.Context, tx *cassink.Tx) error {
		return sets(ctx, tx, epoch.Message{Partition: orders, Offset: 0, Mark: epoch.NoMark}, "item")
	})
	if !errors.Is(err, epoch.ErrMoved) {
		t.Error(err)
	}
	if f, err = sink.Fence(t.Context(), orders); err != nil || f.Next != 2 {
		t.Errorf("%d, %v", f.Next, err)
	}
}

// staleStore is a store whose reads of a key are old for as long as wanted.
type staleStore struct {
	cas.Store
	key string
	old cas.Item
	n   int
}

func (s *staleStore) Get(ctx context.Context, key string) (cas.Item, error) {
	if key == s.key && s.n > 0 {
		s.n--
		return s.old, nil
	}
	return s.Store.Get(ctx, key)
}

const fenceKey = "epochfence/fence/billing/orders/3"

// It is not told that its fence was restored from a backup, as it would be if the claim were its own.
func TestAnOwnerWhoseStoreLagsIsToldThatItIsStale(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := &staleStore{Store: mem, key: fenceKey}
	w := owns(t, s, orders)
	var err error
	s.old, err = mem.Get(t.Context(), fenceKey)
	must(t, err)
	v := owns(t, mem, orders) // the successor
	must(t, v.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "item") }))
	s.n = 3
	err = w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "item") })
	if !errors.Is(err, epoch.ErrStale) || errors.Is(err, epoch.ErrLowEpoch) {
		t.Error(err)
	}
}

func TestAClaimIsNotRefusedByAReadThatLags(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := &staleStore{Store: mem, key: fenceKey}
	w := owns(t, mem, orders)
	old, err := mem.Get(t.Context(), fenceKey)
	must(t, err)
	w.claims()
	sink, err := cassink.Open(t.Context(), s, cassink.Options{})
	must(t, err)
	seen, err := sink.Fence(t.Context(), orders)
	must(t, err)
	s.old, s.n = old, 1
	_, err = sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 1, Owner: "b"}))
	if err != nil {
		t.Error(err)
	}
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
	found, err := w.sink.Requests(t.Context(), []epoch.Partition{orders})
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
	err = sink.Commit(t.Context(), []epoch.Advance{a}, func(ctx context.Context, tx *cassink.Tx) error {
		if err := sets(ctx, tx, m, "item"); err != nil {
			return err
		}
		return sink.Replayed(ctx, tx, r, w.fence.Epoch)
	})
	if err != nil || !errors.Is(discard, operate.ErrDeadLetterChanged) {
		t.Errorf("replay: %v, discard: %v", err, discard)
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
	var ds []operate.Decision
	must(t, json.Unmarshal(log.Value, &ds))
	ds[len(ds)-1].ID += (10 * time.Minute).Milliseconds() << 10
	ds[len(ds)-1].Kind = operate.DecisionKind(operate.ActResume)
	value, err := json.Marshal(ds)
	must(t, err)
	must(t, second(mem.Swap(t.Context(), log, value, nil)))
	hang := operate.Decision{Kind: operate.DecidedHang, Partition: orders, Epoch: w.fence.Epoch, Claim: w.fence.Claim, Owner: w.fence.Owner}
	must(t, w.sink.Record(t.Context(), []operate.Decision{hang, hang}))
	hangs, err := w.sink.Hangs(t.Context(), orders)
	if err != nil || len(hangs) != 2 {
		t.Errorf("%v, %v", hangs, err)
	}
}

func second[T any](_ T, err error) error { return err }

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
	found, err := w.sink.Requests(t.Context(), []epoch.Partition{orders})
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

// The letter is written before the position, and its transaction is refused then.
func TestADeadLetterOfATransactionThatWasRefusedDoesNotExist(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New(), loses: ""}
	s, f := claims(t, store)
	store.loses = "epochfence/fence"
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, func(ctx context.Context, tx *cassink.Tx) error {
		return s.DeadLetter(ctx, tx, message(0), f.Epoch, errPoison)
	})
	if !errors.Is(err, epoch.ErrInDoubt) {
		t.Fatal(err)
	}
	if letters, err := s.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(letters) != 0 {
		t.Errorf("%+v, %v", letters, err)
	}
}
