package memsink_test

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var orders0 = epoch.Partition{Group: "g", Topic: "orders", Number: 0}

// claim seeds the partition if need be and claims it as a lease of that number.
func claim(t *testing.T, s *memsink.Sink, number int64) epoch.Fence {
	t.Helper()
	o := epoch.Origin{Partition: orders0, Log: "log", Source: "broker"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), s, orders0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: number}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func advance(f epoch.Fence, to epoch.Offset) []epoch.Advance {
	return []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: to}}
}

func appendSeen(v string) func(context.Context, *memsink.Tx) error {
	return func(_ context.Context, tx *memsink.Tx) error {
		tx.Append("seen", v)
		return nil
	}
}

func wantSeen(t *testing.T, s *memsink.Sink, want ...string) {
	t.Helper()
	if got := s.List("seen"); !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
		t.Errorf("seen = %q, want %q", got, want)
	}
}

func TestATransactionSeesItsOwnWritesAndOthersSeeThemWhenCommitted(t *testing.T) {
	s := memsink.New()
	err := s.Update(t.Context(), func(_ context.Context, tx *memsink.Tx) error {
		tx.Put("kept", "0")
		tx.Put("gone", "0")
		tx.Append("seen", "a")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Commit(t.Context(), advance(claim(t, s, 1), 1), epoch.TxOptions{}, func(_ context.Context, tx *memsink.Tx) error {
		tx.Put("kept", "1")
		tx.Delete("gone")
		tx.Append("seen", "b", "c")
		if v, ok := tx.Get("kept"); v != "1" || !ok {
			t.Errorf("the transaction reads %q, %v", v, ok)
		}
		if _, ok := tx.Get("gone"); ok {
			t.Error("the transaction reads a key it has deleted")
		}
		if got := tx.List("seen"); len(got) != 3 {
			t.Errorf("the transaction reads %q", got)
		}
		if v, _ := s.Get("kept"); v != "0" {
			t.Errorf("others read %q before the commit", v)
		}
		wantSeen(t, s, "a")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantSeen(t, s, "a", "b", "c")
	if got, want := s.Values(), map[string]string{"kept": "1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("values %q, want %q", got, want)
	}
}

func TestOfTwoTransactionsThatReadAndWriteOneKeyTheSecondIsRefused(t *testing.T) {
	s := memsink.New()
	count := func(_ context.Context, tx *memsink.Tx) error {
		v, _ := tx.Get("n")
		n, _ := strconv.Atoi(v)
		tx.Put("n", strconv.Itoa(n+1))
		return nil
	}
	err := s.Update(t.Context(), func(ctx context.Context, tx *memsink.Tx) error {
		if err := count(ctx, tx); err != nil {
			return err
		}
		return s.Update(ctx, count)
	})
	if !errors.Is(err, memsink.ErrConflict) {
		t.Fatalf("err = %v, want ErrConflict", err)
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				for errors.Is(s.Update(t.Context(), count), memsink.ErrConflict) {
				}
			}
		})
	}
	wg.Wait()
	if v, _ := s.Get("n"); v != "801" {
		t.Errorf("n = %s after 801 increments", v)
	}
}

func TestTransactionsThatAppendToOneListDoNotConflict(t *testing.T) {
	s := memsink.New()
	err := s.Update(t.Context(), func(ctx context.Context, tx *memsink.Tx) error {
		tx.Append("seen", "outer")
		return s.Update(ctx, appendSeen("inner"))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantSeen(t, s, "inner", "outer")
}

func TestATransactionUsedAfterItsHandlerPanics(t *testing.T) {
	s := memsink.New()
	var kept *memsink.Tx
	_ = s.Update(t.Context(), func(_ context.Context, tx *memsink.Tx) error { kept = tx; return nil })
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	kept.Put("k", "v")
}

func TestACommitWithoutAPartitionIsRefused(t *testing.T) {
	s := memsink.New()
	if err := s.Commit(t.Context(), nil, epoch.TxOptions{}, appendSeen("a")); err == nil {
		t.Error("committed without a fence")
	}
	wantSeen(t, s)
}

func TestAnEmptySeedIsNothing(t *testing.T) {
	if err := memsink.New().Seed(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestScriptedCommits(t *testing.T) {
	full := errors.New("disk full")
	var late func() error
	for _, c := range []struct {
		name string
		hook memsink.Hook[[]epoch.Advance]
		want error
		seen []string
	}{
		{"landed and acknowledged", func(_ context.Context, _ []epoch.Advance, do func() error) error { return do() }, nil, []string{"a"}},
		{"landed but in doubt", func(_ context.Context, _ []epoch.Advance, do func() error) error {
			return errors.Join(do(), epoch.ErrInDoubt)
		}, epoch.ErrInDoubt, []string{"a"}},
		{"not landed and in doubt", func(context.Context, []epoch.Advance, func() error) error {
			return epoch.ErrInDoubt
		}, epoch.ErrInDoubt, nil},
		{"refused", func(context.Context, []epoch.Advance, func() error) error { return full }, full, nil},
		{"still in flight", func(_ context.Context, _ []epoch.Advance, do func() error) error {
			late = do
			return epoch.ErrInDoubt
		}, epoch.ErrInDoubt, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := memsink.New()
			f := claim(t, s, 1)
			s.Script(memsink.Hooks{Commit: c.hook})
			if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, appendSeen("a")); !errors.Is(err, c.want) {
				t.Errorf("err = %v, want %v", err, c.want)
			}
			wantSeen(t, s, c.seen...)
			if late != nil {
				if err := late(); err != nil {
					t.Error(err)
				}
				wantSeen(t, s, "a")
			}
		})
	}
}

func TestAHookCannotPretendSuccess(t *testing.T) {
	s := memsink.New()
	f := claim(t, s, 1)
	s.Script(memsink.Hooks{Commit: func(context.Context, []epoch.Advance, func() error) error { return nil }})
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, appendSeen("a")); err == nil {
		t.Error("a hook that did not take the step made it succeed")
	}
	s.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error { _ = do(); return nil }})
	moved := advance(f, 1)
	moved[0].From, moved[0].To = 5, 6
	if err := s.Commit(t.Context(), moved, epoch.TxOptions{}, appendSeen("a")); !errors.Is(err, epoch.ErrMoved) {
		t.Errorf("err = %v, want ErrMoved", err)
	}
	wantSeen(t, s)
}

func TestAProcessFrozenWithItsTransactionOpenIsRefusedWhenItThaws(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		frozen := memsink.New()
		other := frozen.Open()
		f := claim(t, frozen, 1)
		thaw := make(chan struct{})
		frozen.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-thaw
			return do()
		}})
		result := make(chan error)
		go func() { result <- frozen.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, appendSeen("zombie")) }()
		synctest.Wait()

		f2 := claim(t, other, 2)
		if err := other.Commit(t.Context(), advance(f2, 1), epoch.TxOptions{}, appendSeen("owner")); err != nil {
			t.Fatal(err)
		}
		close(thaw)
		if err := <-result; !errors.Is(err, epoch.ErrStale) {
			t.Errorf("err = %v, want ErrStale", err)
		}
		wantSeen(t, other, "owner")
	})
}

func TestARestoreTakesEverythingBackAndEndsOpenTransactions(t *testing.T) {
	s := memsink.New()
	f := claim(t, s, 1)
	backup := s.Snapshot()
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		tx.Put("k", "v")
		tx.Append("seen", "a")
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders0}, f.Epoch, errors.New("poison"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.Restore(backup)
		wantSeen(t, s)
		if len(s.Values()) != 0 || len(s.DeadLetters()) != 0 || s.Fences()[orders0] != f {
			t.Errorf("after the restore: %v, %v, %v", s.Values(), s.DeadLetters(), s.Fences())
		}
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, *memsink.Tx) error {
			s.Restore(backup)
			return nil
		})
		if !errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("err = %v, want ErrInDoubt", err)
		}
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, appendSeen("b")); err != nil {
			t.Error(err)
		}
	}
}

func TestADeadLetterNamesItsPartitionAndCommitsWithTheAdvance(t *testing.T) {
	s := memsink.New()
	f := claim(t, s, 7)
	m := epoch.Message{Partition: orders0, Offset: 0, Value: []byte("x")}
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		other := m
		other.Partition.Number = 1
		if err := s.DeadLetter(ctx, tx, other, f.Epoch, errors.New("poison")); err == nil {
			t.Error("a message of another partition was put aside")
		}
		return s.DeadLetter(ctx, tx, m, f.Epoch, errors.New("poison"))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []memsink.DeadLetter{{Epoch: 7, Message: m, Cause: "poison"}}
	if got := s.DeadLetters(); !reflect.DeepEqual(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
}

type lazyError func() string

func (e lazyError) Error() string { return e() }

func TestTheErrorOfADeadLetterMayUseTheTransaction(t *testing.T) {
	s := memsink.New()
	f := claim(t, s, 7)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		tx.Put("why", "poison")
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders0}, f.Epoch, lazyError(func() string { why, _ := tx.Get("why"); return why }))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.DeadLetters(); len(got) != 1 || got[0].Cause != "poison" {
		t.Errorf("dead letters %v", got)
	}
}
