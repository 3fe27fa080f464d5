package cassink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// broken is a store that loses the writes of some items.
type broken struct {
	cas.Store
	loses  string // the prefix of their keys
	spares int    // so many that it does not lose
}

var errLost = errors.New("the connection was lost")

func (b *broken) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if b.isLost(seen.Key) {
		return cas.Item{}, errLost
	}
	return b.Store.Swap(ctx, seen, value, note)
}

func (b *broken) Delete(ctx context.Context, seen cas.Item) error {
	if b.isLost(seen.Key) {
		return errLost
	}
	return b.Store.Delete(ctx, seen)
}

func (b *broken) isLost(key string) bool {
	if b.loses == "" || !strings.HasPrefix(key, b.loses) {
		return false
	}
	b.spares--
	return b.spares < 0
}

// claims returns a sink with a claim of the partition.
func claims(t *testing.T, store cas.Store) (*cassink.Sink, epoch.Fence) {
	t.Helper()
	return claimsWith(t, store, cassink.Options{})
}

func claimsWith(t *testing.T, store cas.Store, o cassink.Options) (*cassink.Sink, epoch.Fence) {
	t.Helper()
	s, err := cassink.Open(t.Context(), store, o)
	must(t, err)
	at := epoch.Position{Mark: epoch.NoMark}
	must(t, s.Seed(t.Context(), []epoch.Start{{Origin: origin(), Next: at, Earliest: at}}))
	seen, err := epoch.FenceOf(t.Context(), s, orders)
	must(t, err)
	f, err := s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: 1, Owner: "owner"}))
	must(t, err)
	return s, f
}

func advance(f epoch.Fence, messages epoch.Offset) epoch.Advance {
	return epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + messages, Mark: epoch.NoMark}
}

func message(offset epoch.Offset) epoch.Message {
	return epoch.Message{Partition: orders, Offset: offset, Mark: epoch.NoMark, Value: []byte("v")}
}

func TestThePositionStaysWhereAnItemWasNotWritten(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New(), loses: "stock"}
	s, f := claims(t, store)
	apply := func(ctx context.Context, tx *cassink.Tx) error {
		_, err := tx.Update(ctx, message(0), "stock", add("0"))
		return err
	}
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, apply)
	if !errors.Is(err, epoch.ErrInDoubt) || !errors.Is(err, errLost) {
		t.Errorf("%v", err)
	}
	if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now != f {
		t.Errorf("the fence is %+v, %v", now, err)
	}
	store.loses = ""
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, apply))
	if got, err := guard.Read(t.Context(), store, "stock"); err != nil || string(got.Value) != "0" {
		t.Errorf("%q, %v", got.Value, err)
	}
}

// Another owner claims, or another transaction of this claim moves the position, between the read of the fence and its
// swap.
func TestThePositionMovesOnceAndUnderItsClaimAlone(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *cassink.Tx) error { return nil }
	for name, test := range map[string]struct {
		meanwhile func(t *testing.T, store cas.Store, f epoch.Fence) epoch.Fence
		want      error
	}{
		"another owner claims": {func(t *testing.T, store cas.Store, f epoch.Fence) epoch.Fence {
			t.Helper()
			other, err := cassink.Open(t.Context(), store, cassink.Options{})
			must(t, err)
			f, err = other.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: 2, Owner: "another"}))
			must(t, err)
			return f
		}, epoch.ErrStale},
		"the position moves": {func(t *testing.T, store cas.Store, f epoch.Fence) epoch.Fence {
			t.Helper()
			other, err := cassink.Open(t.Context(), store, cassink.Options{})
			must(t, err)
			must(t, other.Commit(t.Context(), []epoch.Advance{advance(f, 2)}, epoch.TxOptions{}, nothing, nothing))
			f.Next, f.Applied = f.Next+2, true
			return f
		}, epoch.ErrMoved},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			store := &hooked{Store: mem, key: fenceKey}
			s, f := claims(t, store)
			var then epoch.Fence
			store.do = func() { then = test.meanwhile(t, mem, f) }
			if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, nothing); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now != then {
				t.Errorf("the fence is %+v, %v, want %+v", now, err, then)
			}
		})
	}
}

func TestADeadLetterStaysUntilTheItemsOfItsReplayAreWritten(t *testing.T) {
	t.Parallel()
	store := &broken{Store: memstore.New()}
	s, f := claims(t, store)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		return s.DeadLetter(ctx, tx, message(0), f.Epoch, errPoison)
	}))
	f.Next = 1
	o := s.Operator()
	letters, err := o.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	must(t, err)
	_, err = o.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: letters[0], By: "anna", Reason: "fixed"})
	must(t, err)
	replay := func() error {
		found, err := operate.RecordsIn[*cassink.Tx](s).Requests(t.Context(), []epoch.Partition{orders})
		must(t, err)
		if len(found.Replays) != 1 {
			t.Fatalf("%+v", found)
		}
		m := found.Replays[0].Message
		m.Replay = found.Replays[0].ID
		return s.Commit(t.Context(), []epoch.Advance{advance(f, 0)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
			if _, err := tx.Update(ctx, m, "stock", add("0")); err != nil {
				return err
			}
			return operate.RecordsIn[*cassink.Tx](s).Replayed(ctx, tx, found.Replays[0], f)
		})
	}
	store.loses = "stock"
	if err := replay(); !errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("%v", err)
	}
	store.loses = ""
	must(t, replay())
	if got, err := guard.Read(t.Context(), store, "stock"); err != nil || string(got.Value) != "0" {
		t.Errorf("%q, %v", got.Value, err)
	}
	if letters, err := o.DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(letters) != 0 {
		t.Errorf("%+v, %v", letters, err)
	}
}

func TestAnItemThatHasSeenAHigherEpochHasTheFenceClaimedAboveIt(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	stamp := guard.Stamp{Partition: orders, Log: "log", Epoch: 40, Offset: 0, Mark: epoch.NoMark}
	_, err := guard.Apply(t.Context(), store, "stock", stamp, add("0"))
	must(t, err)
	s, f := claims(t, store) // of a fence that was restored from a backup, say
	apply := func(ctx context.Context, tx *cassink.Tx) error {
		_, err := tx.Update(ctx, message(0), "stock", add("again"))
		return err
	}
	err = s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, apply)
	if low, ok := errors.AsType[*epoch.LowEpochError](err); !ok || low.Seen != 40 {
		t.Fatalf("%v", err)
	}
	c := epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: 1, Owner: "owner"})
	c.Above = 40
	f, err = s.Claim(t.Context(), f, c)
	must(t, err)
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, apply))
	if got, err := guard.Read(t.Context(), store, "stock"); err != nil || string(got.Value) != "0" {
		t.Errorf("%q, %v", got.Value, err)
	}
}

func TestAMessageThatWasPassedIsNotAppliedAgain(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	for offset := range epoch.Offset(3) { // all were applied, and the fence has lost that
		stamp := guard.Stamp{Partition: orders, Log: "log", Epoch: 1, Offset: offset, Mark: epoch.NoMark}
		_, err := guard.Apply(t.Context(), store, "stock", stamp, add(fmt.Sprint(offset)))
		must(t, err)
	}
	s, f := claims(t, store)
	apply := func(ctx context.Context, tx *cassink.Tx, from, to epoch.Offset) error { // as a handler of batches does
		for offset := from; offset < to; offset++ {
			if _, err := tx.Update(ctx, message(offset), "stock", add("again")); err != nil {
				return err
			}
		}
		return nil
	}
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 4)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error { return apply(ctx, tx, 0, 4) })
	if moved, ok := errors.AsType[*epoch.MovedError](err); !ok || moved.Next != 2 {
		t.Fatalf("a call of four messages, of which two were passed, and one was applied: %v", err)
	}
	f.Next = 2
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 2)}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error { return apply(ctx, tx, 2, 4) }))
	if got, err := guard.Read(t.Context(), store, "stock"); err != nil || string(got.Value) != "0 1 2 again" {
		t.Errorf("%q, %v", got.Value, err)
	}
}

func TestAFailedTransactionHasChangedNothingWhateverTheHandlerReturns(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, f := claims(t, store)
	for name, handle := range map[string]func(ctx context.Context, tx *cassink.Tx) error{
		"an error of its own": func(ctx context.Context, tx *cassink.Tx) error {
			_, _ = tx.Update(ctx, message(0), "stock", add("0"))
			return errPoison
		},
		"an item that is changed twice": func(ctx context.Context, tx *cassink.Tx) error {
			_, _ = tx.Update(ctx, message(0), "stock", add("0"))
			_, _ = tx.Update(ctx, message(0), "stock", add("0"))
			return nil
		},
		"a message of another transaction": func(ctx context.Context, tx *cassink.Tx) error {
			_, _ = tx.Update(ctx, message(0), "stock", add("0"))
			_, _ = tx.Update(ctx, message(5), "stock", add("5"))
			return nil
		},
		"an item of the sink": func(ctx context.Context, tx *cassink.Tx) error {
			_, _ = tx.Update(ctx, message(0), "stock", add("0"))
			_, _ = tx.Update(ctx, message(0), "epochfence/fence/billing/orders/3", add("0"))
			return nil
		},
	} {
		if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, handle); err == nil || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrTransient) {
			t.Errorf("%s: %v, want that it is the message's fault", name, err)
		}
		if got, err := guard.Read(t.Context(), store, "stock"); err != nil || got.Exists {
			t.Errorf("%s: %q, %v", name, got.Value, err)
		}
	}
	if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now != f {
		t.Errorf("the fence is %+v, %v", now, err)
	}
}
