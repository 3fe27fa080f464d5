package cassink_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// adding adds entries with these bodies.
func adding(bodies ...string) func(context.Context, *cassink.Tx) error {
	return func(_ context.Context, tx *cassink.Tx) error {
		box, err := tx.Outbox(orders)
		for _, body := range bodies {
			err = errors.Join(err, box.Add(operate.OutboxEntry{Key: "k", IdempotencyKey: body, URL: "http://host/secret", Body: []byte(body)}))
		}
		return err
	}
}

// holds commits under the claim of f.
func holds(t *testing.T, s *cassink.Sink, f epoch.Fence, do func(context.Context, *cassink.Tx, cassink.Outbox) error) error {
	t.Helper()
	return s.CommitHeld(t.Context(), epoch.Hold{Partition: orders, Claim: f.Claim}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		box, err := tx.Outbox(orders)
		if err != nil {
			return err
		}
		return do(ctx, tx, box)
	})
}

func left(t *testing.T, s *cassink.Sink) (all []operate.OutboxEntry) {
	t.Helper()
	all, err := s.Operator().OutboxEntries(t.Context(), operate.OutboxQuery{Limit: 2 * cassink.MaxEntries})
	must(t, err)
	return all
}

func keysOfEntries(es []operate.OutboxEntry) (all []string) {
	for _, e := range es {
		all = append(all, e.IdempotencyKey)
	}
	return all
}

// itemsOfEntries are the items that a store has for the outbox.
func itemsOfEntries(t *testing.T, store cas.Store) (items []cas.Item) {
	t.Helper()
	for it, err := range store.List(t.Context(), "epochfence/outbox/") {
		must(t, err)
		items = append(items, it)
	}
	return items
}

func next(t *testing.T, s *cassink.Sink, f epoch.Fence) epoch.Fence {
	t.Helper()
	f, err := s.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: f.Generation + 1, Owner: "next"}))
	must(t, err)
	return f
}

func TestAnEntryExistsByTheCommitOfItsMessage(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New()}
	s, f := claims(t, store)
	store.loses = "epochfence/fence"
	if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")); !errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("%v", err)
	}
	if es := left(t, s); len(es) != 0 || len(itemsOfEntries(t, store)) != 1 {
		t.Errorf("entries without their position: %+v", es)
	}
	store.loses = ""
	f = next(t, s, f)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a", "b")))
	if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		es, err := box.Scan(ctx, 0, 10)
		if got := keysOfEntries(es); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%q", got)
		}
		return err
	}))
	if n := len(itemsOfEntries(t, store)); n != 2 {
		t.Errorf("%d items for two entries: the one that was not committed is there still", n)
	}
}

func TestATransactionThatIsRefusedLeavesNoEntry(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	zombie, f := claims(t, store)
	other, err := cassink.Open(t.Context(), store, cassink.Options{})
	must(t, err)
	var owner epoch.Fence
	err = zombie.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		owner = next(t, other, f)
		return adding("a")(ctx, tx)
	})
	if !errors.Is(err, epoch.ErrStale) {
		t.Errorf("%v", err)
	}
	must(t, other.Commit(t.Context(), []epoch.Advance{advance(owner, 1)}, epoch.TxOptions{}, adding("b")))
	sent := left(t, other)[0].ID
	err = holds(t, zombie, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		_, err := box.Delete(ctx, []int64{sent})
		return err
	})
	if stale, ok := errors.AsType[*epoch.StaleError](err); !ok || stale.Ours != f.Claim {
		t.Errorf("deleted by one that has lost its claim: %v", err)
	}
	if got := keysOfEntries(left(t, other)); !slices.Equal(got, []string{"b"}) || len(itemsOfEntries(t, store)) != 1 {
		t.Errorf("%q are left, in %d items", got, len(itemsOfEntries(t, store)))
	}
}

// A relay reads entries by ID, and does not look back.
func TestEntriesAreCommittedInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, f := claims(t, memstore.New())
		message := make(chan error, 1)
		must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
			if err := adding("answer")(ctx, tx); err != nil {
				return err
			}
			es, err := box.Scan(ctx, 0, 10) // it has an ID by now
			if err != nil || len(es) != 1 {
				return fmt.Errorf("%v, %w", es, err)
			}
			go func() {
				message <- s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("message"))
			}()
			synctest.Wait()
			select {
			case err := <-message:
				return fmt.Errorf("the entry of a message is committed before one with a lower ID: %w", err)
			default:
				return nil
			}
		}))
		must(t, <-message)
		if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"answer", "message"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestAnAbandonedTransactionLetsOthersWriteTheFence(t *testing.T) {
	t.Parallel()
	s, f := claims(t, memstore.New())
	abandoned, abandon := context.WithCancel(t.Context())
	returns, ended := make(chan struct{}), make(chan error, 1)
	defer func() {
		close(returns)
		if err := <-ended; !errors.Is(err, epoch.ErrAbandoned) {
			t.Errorf("%v", err)
		}
	}()
	hangs := make(chan error)
	go func() {
		ended <- s.CommitHeld(t.Context(), epoch.Hold{Partition: orders, Claim: f.Claim}, epoch.TxOptions{Abandoned: abandoned}, func(ctx context.Context, tx *cassink.Tx) error {
			box, err := tx.Outbox(orders)
			if err == nil {
				err = adding("hangs")(ctx, tx)
			}
			if err == nil {
				_, err = box.Scan(ctx, 0, 1)
			}
			hangs <- err
			<-returns
			return nil
		})
	}()
	must(t, <-hangs)
	abandon()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	must(t, s.Commit(ctx, []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("message")))
	if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"message"}) {
		t.Errorf("%q", got)
	}
}

func TestAnEntryFollowsThoseOfAProcessWhoseClockIsAhead(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, cassink.SetLastEntry(t.Context(), s, orders, 1<<60))
	f = next(t, s, f)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	if es := left(t, s); len(es) != 1 || es[0].ID <= 1<<60 {
		t.Errorf("%+v", es)
	}
}

func TestAReplayThatIsRepeatedAddsItsEntriesOnce(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New()}
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		return s.DeadLetter(ctx, tx, message(0), f.Epoch, errPoison)
	}))
	f.Next = 1
	letters, err := s.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{})
	must(t, err)
	_, err = s.Operator().DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: letters[0], By: "anna", Reason: "fixed"})
	must(t, err)
	replay := func() error {
		found, err := operate.RecordsIn[*cassink.Tx](s).Requests(t.Context(), []epoch.Partition{orders})
		must(t, err)
		return s.Commit(t.Context(), []epoch.Advance{advance(f, 0)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
			if err := adding("a")(ctx, tx); err != nil {
				return err
			}
			return operate.RecordsIn[*cassink.Tx](s).Replayed(ctx, tx, found.Replays[0], f)
		})
	}
	store.loses, store.spares = "epochfence/dead", 1 // its beginning is written, and its end is not
	if err := replay(); !errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("%v", err)
	}
	store.loses = ""
	f = next(t, s, f)
	must(t, replay())
	if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
	if letters, err := s.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(letters) != 0 {
		t.Errorf("%+v, %v", letters, err)
	}
}

func TestAFullOutboxHasMessagesWaitAndNotItsOwnAnswers(t *testing.T) {
	t.Parallel()
	s, f := claims(t, memstore.New())
	var many []string
	for n := range cassink.MaxEntries {
		many = append(many, fmt.Sprint(n))
	}
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding(many...)))
	f.Next = 1
	one := func() error {
		return s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("one more"))
	}
	err := one()
	if !errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "4096 wait to be sent") {
		t.Errorf("%v", err)
	}
	must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, _ cassink.Outbox) error {
		return adding("follows an answer")(ctx, tx)
	}))
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		es, err := box.Scan(ctx, 0, 2)
		if err != nil {
			return err
		}
		_, err = box.Delete(ctx, []int64{es[0].ID, es[1].ID})
		return err
	}))
	must(t, one())
	if n := len(left(t, s)); n != cassink.MaxEntries {
		t.Errorf("%d entries", n)
	}
}

func TestBackgroundWorkChangesItemsForEntriesAlone(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	id := left(t, s)[0].ID
	for what, m := range map[string]epoch.Message{
		"a message": message(0), "no message": {Partition: orders}, "no entry": {Partition: orders, Replay: id + 1}, "another partition": {Replay: id},
	} {
		err := holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, _ cassink.Outbox) error {
			_, _ = tx.Update(ctx, m, "stock", add(what))
			return nil
		})
		if err == nil || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
		if _, err := box.Delete(ctx, []int64{id}); err != nil {
			return err
		}
		_, err := tx.Update(ctx, epoch.Message{Partition: orders, Replay: id}, "stock", add("answer"))
		return err
	}))
	if got, err := guard.Read(t.Context(), store, "stock"); err != nil || string(got.Value) != "answer" {
		t.Errorf("%q, %v", got.Value, err)
	}
}

// Many answers of one transaction change one item, and the process dies before they are deleted. The next
// one records them one by one, the last first.
func TestAnItemRemembersAnAnswerForAsLongAsItsEntryIsThere(t *testing.T) {
	t.Parallel()
	const answers = guard.MaxReplays + 8
	store := &broken{Store: memstore.New()}
	s, f := claims(t, store)
	var bodies []string
	for n := range answers {
		bodies = append(bodies, fmt.Sprint(n))
	}
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding(bodies...)))
	record := func(es ...operate.OutboxEntry) error {
		return holds(t, s, f, func(ctx context.Context, tx *cassink.Tx, box cassink.Outbox) error {
			for _, e := range es {
				if _, err := box.Delete(ctx, []int64{e.ID}); err != nil {
					return err
				}
				if _, err := tx.Update(ctx, epoch.Message{Partition: orders, Replay: e.ID}, "balance", addQuietly(e.IdempotencyKey)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	es := left(t, s)
	store.loses = "epochfence/fence"
	if err := record(es...); !errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("%v", err)
	}
	store.loses = ""
	f = next(t, s, f)
	for _, e := range slices.Backward(es) {
		must(t, record(e))
	}
	got, err := guard.Read(t.Context(), store, "balance")
	if words := strings.Fields(string(got.Value)); err != nil || !slices.Equal(words, bodies) {
		t.Errorf("%v, %v", words, err)
	}
}

// addQuietly appends a word, without an outcome.
func addQuietly(word string) guard.Change {
	return func(old guard.State) (guard.State, []byte, error) {
		now, _, err := add(word)(old)
		return now, nil, err
	}
}

func TestAnEntryWhoseItemIsLostIsNamedAndCanBeDiscarded(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a", "b")))
	es := left(t, s)
	for _, it := range itemsOfEntries(t, store) {
		if strings.HasSuffix(it.Key, fmt.Sprint(es[0].ID)) {
			must(t, store.Delete(t.Context(), it))
		}
	}
	scan := func() error {
		return holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
			_, err := box.Scan(ctx, 0, 10)
			return err
		})
	}
	err := scan()
	if want := fmt.Sprintf("epochfence outbox discard %d", es[0].ID); !errors.Is(err, epoch.ErrUnhealthy) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	seen, err := s.Operator().OutboxEntry(t.Context(), es[0].ID)
	must(t, err)
	if want := (operate.OutboxEntry{ID: es[0].ID, Partition: orders, Offset: -1}); !reflect.DeepEqual(seen, want) || !reflect.DeepEqual(left(t, s)[0], want) {
		t.Errorf("shown as %+v, listed as %+v, want %+v", seen, left(t, s)[0], want)
	}
	must(t, s.Operator().DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: seen, By: "anna", Reason: "lost"}))
	must(t, scan())
	if got := keysOfEntries(left(t, s)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%q", got)
	}
}

func TestAnEntryThatIsDiscardedBesideItsRelayIsGone(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a", "b")))
	other, err := cassink.Open(t.Context(), store, cassink.Options{})
	must(t, err)
	es := left(t, other)
	must(t, other.Operator().DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: es[0], By: "anna", Reason: "refused"}))
	must(t, holds(t, s, f, func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
		found, err := box.Scan(ctx, 0, 10)
		if got := keysOfEntries(found); !slices.Equal(got, []string{"b"}) {
			t.Errorf("%q", got)
		}
		return err
	}))
}

// An operator's process may be late: the entry was sent since it was read.
func TestAnActOnAnEntryThatIsNotAsSeenChangesNothing(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	e := left(t, s)[0]
	other, nowhere := orders, orders
	other.Number, nowhere.Topic = 4, "returns"
	owns(t, store, other)
	for what, r := range map[string]operate.Row{
		"another key":                 {ID: e.ID, Name: "b", Partition: orders},
		"another ID":                  {ID: e.ID + 1, Name: "a", Partition: orders},
		"another partition":           {ID: e.ID, Name: "a", Partition: other},
		"a partition without a fence": {ID: e.ID, Name: "a", Partition: nowhere},
	} {
		r.Kind, r.State = operate.KindOutbox, operate.StateRequested
		for _, remove := range []bool{true, false} {
			if err := s.Write(t.Context(), operate.Change{Row: r, Remove: remove}); !errors.Is(err, operate.ErrRowChanged) {
				t.Errorf("%s, removed %t: %v", what, remove, err)
			}
		}
	}
	if after := left(t, s); len(after) != 1 || after[0].RetryRequested {
		t.Errorf("%+v", after)
	}
}

func TestAnEntryThatIsTooLargeIsItsMessagesFault(t *testing.T) {
	t.Parallel()
	s, f := claims(t, tight{memstore.New()})
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding(strings.Repeat("x", 5000)))
	if !errors.Is(err, cas.ErrTooLarge) || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("%v", err)
	}
}

// tight is a store of small items.
type tight struct{ cas.Store }

func (tight) Facts(context.Context) (cas.Facts, error) { return cas.Facts{MaxValue: 4096}, nil }
