package sinktest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// Store is a sink of one's own: fences and effects in one place, here a map under
// a lock.
type Store struct {
	mu     sync.Mutex
	fences epoch.Fences
	lists  map[string][]string
}

// Tx is what a handler writes through. Nobody sees it before the commit.
type Tx struct {
	lists     map[string][]string
	ended     bool
	abandoned *atomic.Bool // of the transaction
}

// Append adds a value to a list.
func (tx *Tx) Append(list, value string) error {
	if tx.abandoned.Load() {
		return fmt.Errorf("store: %w", epoch.ErrAbandoned)
	}
	if tx.ended {
		return errors.New("store: the transaction has ended")
	}
	tx.lists[list] = append(tx.lists[list], value)
	return nil
}

func NewStore() *Store {
	return &Store{fences: epoch.Fences{}, lists: map[string][]string{}}
}

func (s *Store) Facts() epoch.Facts { return epoch.Facts{Guarantee: epoch.Transactional} }

func (s *Store) Look(ctx context.Context, ps []epoch.Partition) (found epoch.Fences, err error) {
	err = s.locked(ctx, func() error { found = s.fences.Look(ps); return nil })
	return found, err
}

func (s *Store) Seed(ctx context.Context, starts []epoch.Start) error {
	return s.locked(ctx, func() error { return s.fences.Seed(starts) })
}

func (s *Store) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (f epoch.Fence, err error) {
	err = s.locked(ctx, func() error { f, err = s.fences.Claim(seen, c); return err })
	return f, err
}

// Commit runs calls, and then, in one step that nobody sees half of, checks the
// fences and lets the writes be seen.
func (s *Store) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *Tx) error) error {
	if len(as) == 0 {
		return errors.New("store: commit without an advance")
	}
	for i, a := range as {
		if slices.ContainsFunc(as[:i], func(b epoch.Advance) bool { return b.Partition == a.Partition }) {
			return fmt.Errorf("store: commit advances %s twice", a.Partition)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	lists := map[string][]string{}
	var abandoned atomic.Bool
	stop := o.AfterAbandoned(func() { abandoned.Store(true) }) // with a connection: close it, too, so that the server releases its locks
	defer stop()
	for _, call := range calls {
		tx := &Tx{lists: lists, abandoned: &abandoned}
		err := call(ctx, tx)
		tx.ended = true
		if abandoned.Load() {
			return epoch.Abandoned(err)
		}
		if err != nil {
			return err
		}
	}
	if !stop() {
		return epoch.ErrAbandoned
	}
	return s.locked(ctx, func() error {
		if err := s.fences.Advance(as); err != nil { // the check comes last: if it fails, nothing is written
			return err
		}
		for list, values := range lists {
			s.lists[list] = append(s.lists[list], values...)
		}
		return nil
	})
}

func (s *Store) locked(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

func (s *Store) List(list string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lists[list])
}

// testStore is the test of the sink. Yours is called TestStore.
func testStore(t *testing.T) {
	create := func(testing.TB) sinktest.Database[*Tx] {
		s := NewStore()
		return sinktest.Database[*Tx]{
			Open:   func(testing.TB) epoch.Sink[*Tx] { return s },
			Append: func(_ context.Context, tx *Tx, list, value string) error { return tx.Append(list, value) },
			List:   func(_ context.Context, list string) ([]string, error) { return s.List(list), nil },
		}
	}
	sinktest.Run(t, create)
	sinktest.RunUnblocked(t, create)
}

// A sink of one's own, the test that runs the suite on it (testStore), and a
// consumer that applies messages to it.
func Example() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table")
	store := NewStore()

	reserve := func(_ context.Context, tx *Tx, m consumer.Message, _ epoch.Epoch) error {
		return tx.Append("reserved", string(m.Value))
	}
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), store, consumer.Each(reserve),
		consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	fmt.Println(store.List("reserved"), err)
	// Output: [a chair a table] <nil>
}
