package lease_test

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
)

// vanishing is a store that somebody deletes: watches fail until Facts, which creates it again.
type vanishing struct {
	*memstore.Store
	gone  atomic.Bool
	watch atomic.Pointer[context.CancelFunc]
}

func (s *vanishing) Facts(ctx context.Context) (cas.Facts, error) {
	s.gone.Store(false)
	return s.Store.Facts(ctx)
}

func (s *vanishing) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if s.gone.Load() {
			yield(cas.Item{}, errors.New("there is no bucket"))
			return
		}
		ctx, end := context.WithCancel(ctx)
		defer end()
		s.watch.Store(&end)
		for item, err := range s.Store.Watch(ctx, prefix) {
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// The watch ends before the member looks for the source by itself, once a TTL.
func TestAStoreThatVanishesUnderAWatchIsAskedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &vanishing{Store: memstore.New()}
		m, err := lease.Open(t.Context(), s, lease.Options{Group: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		<-time.After(time.Millisecond) // it watches
		s.gone.Store(true)
		(*s.watch.Load())()
		<-time.After(m.TTL / 2)
		if s.gone.Load() {
			t.Error("nobody has asked for the store since")
		}
	})
}
