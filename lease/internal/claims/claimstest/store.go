// Package claimstest has a process's way to a store, for the tests of package lease's adapters.
package claimstest

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
)

// ErrCut is returned, with that of the context, by requests while the way is cut.
var ErrCut = errors.New("the way to the store is cut")

// Store is the way of one process to a store that others reach too. While it is cut, requests wait
// until their contexts end, and changes arrive afterwards.
type Store struct {
	to *memstore.Store

	mu    sync.Mutex
	whole chan struct{} // closed unless the way is cut
}

var _ cas.Watcher = (*Store)(nil)

// To returns a way to a store.
func To(s *memstore.Store) *Store {
	whole := make(chan struct{})
	close(whole)
	return &Store{to: s, whole: whole}
}

// Cut cuts the way until mend is called.
func (s *Store) Cut() (mend func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cut := make(chan struct{})
	s.whole = cut
	return func() { close(cut) }
}

func (s *Store) pass(ctx context.Context) error {
	s.mu.Lock()
	whole := s.whole
	s.mu.Unlock()
	select {
	case <-whole:
		return nil
	case <-ctx.Done():
		return errors.Join(ErrCut, ctx.Err())
	}
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := s.pass(ctx); err != nil {
		return cas.Item{}, err
	}
	return s.to.Get(ctx, key)
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := s.pass(ctx); err != nil {
		return cas.Item{}, err
	}
	return s.to.Swap(ctx, seen, value, note)
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	return s.to.Delete(ctx, seen)
}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	if err := s.pass(ctx); err != nil {
		return cas.Facts{}, err
	}
	return s.to.Facts(ctx)
}

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return s.each(ctx, s.to.List(ctx, prefix))
}

// Watch implements [cas.Watcher].
func (s *Store) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return s.each(ctx, s.to.Watch(ctx, prefix))
}

func (s *Store) each(ctx context.Context, items iter.Seq2[cas.Item, error]) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range items {
			if cut := s.pass(ctx); cut != nil {
				yield(cas.Item{}, cut)
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}
