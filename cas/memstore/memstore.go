// Package memstore is a [cas.Store] in memory, for tests. It hides a map under a lock. All
// processes of a test share one store, and nothing is kept when the process ends.
package memstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// Store holds items in memory. All users of one Store see the same items. Its zero value is not
// usable: see [New].
type Store struct {
	mu     sync.Mutex
	source string
	last   int64
	items  map[string]cas.Item
	change chan struct{} // closed at the next change
}

var _ cas.Watcher = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{source: rand.Text(), items: map[string]cas.Item{}, change: make(chan struct{})}
}

var facts = cas.Facts{Numbers: true, ListsWhole: true}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := facts
	f.Source = s.source
	return f, ctx.Err()
}

// Now implements [cas.Clock].
func (s *Store) Now(ctx context.Context) (time.Time, error) { return time.Now(), ctx.Err() }

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := first(ctx.Err(), facts.Check(key, nil, nil)); err != nil {
		return cas.Item{}, fmt.Errorf("memstore: get %q: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return clone(s.get(key)), nil
}

func (s *Store) get(key string) cas.Item {
	if item, ok := s.items[key]; ok {
		return item
	}
	return cas.Item{Key: key}
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	item, err := s.write(ctx, seen, cas.NewItem(seen.Key, value, note))
	if err != nil {
		return cas.Item{}, fmt.Errorf("memstore: swap %q: %w", seen.Key, err)
	}
	return item, nil
}

// Delete implements [cas.Store]. The store remembers the version of the deletion.
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	err := first(ctx.Err(), facts.Check(seen.Key, nil, nil), cas.ErrConflict)
	if seen.Live {
		_, err = s.write(ctx, seen, cas.Item{Key: seen.Key})
	}
	if err != nil {
		return fmt.Errorf("memstore: delete %q: %w", seen.Key, err)
	}
	return nil
}

func (s *Store) write(ctx context.Context, seen, item cas.Item) (cas.Item, error) {
	if err := first(ctx.Err(), facts.Check(item.Key, item.Value, item.Note)); err != nil {
		return cas.Item{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.get(item.Key).Version != seen.Version {
		return cas.Item{}, cas.ErrConflict
	}
	s.last++
	item.Number, item.Version = s.last, rand.Text()
	s.items[item.Key] = clone(item)
	s.changed()
	return clone(item), nil
}

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(cas.Item{}, fmt.Errorf("memstore: list %q: %w", prefix, err))
			return
		}
		for _, item := range s.live(prefix) {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Watch implements [cas.Watcher].
func (s *Store) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		begins, seen := true, state{}
		for ctx.Err() == nil {
			items, now, change := s.since(seen, prefix)
			for _, item := range items {
				if (item.Live || !begins) && !yield(item, nil) {
					return
				}
			}
			if begins && !yield(cas.Item{}, nil) {
				return
			}
			begins, seen = false, now
			select {
			case <-change:
			case <-ctx.Done():
			}
		}
		yield(cas.Item{}, fmt.Errorf("memstore: watch %q: %w", prefix, ctx.Err()))
	}
}

// state is the number of the last write, which a backup repeats in another source.
type state struct {
	source string
	last   int64
}

// since returns the items with the prefix that have changed since a state, or all if a backup was
// restored since, and a channel that is closed at the next change.
func (s *Store) since(seen state, prefix string) (items []cas.Item, now state, change <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var number int64
	if s.source == seen.source {
		number = seen.last
	}
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if item := s.items[key]; item.Number > number && strings.HasPrefix(key, prefix) {
			item = clone(item)
			item.Note = nil
			items = append(items, item)
		}
	}
	return items, state{s.source, s.last}, s.change
}

// changed wakes the watchers. s.mu is held.
func (s *Store) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// Backup returns a function that puts the items back as they are now. Numbers repeat then.
func (s *Store) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, items := s.last, maps.Clone(s.items)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.source, s.last, s.items = rand.Text(), last, maps.Clone(items)
		s.changed()
	}
}

func (s *Store) live(prefix string) []cas.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []cas.Item
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if item := s.items[key]; item.Live && strings.HasPrefix(key, prefix) {
			items = append(items, clone(item))
		}
	}
	return items
}

func clone(item cas.Item) cas.Item {
	item.Value, item.Note = slices.Clone(item.Value), slices.Clone(item.Note)
	return item
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
