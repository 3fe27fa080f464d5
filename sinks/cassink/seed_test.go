package cassink_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// together is a store that reads a fence once two reads of fences wait for it.
type together struct {
	*memstore.Store
	both  sync.WaitGroup
	reads atomic.Int32
}

func (s *together) Get(ctx context.Context, key string) (cas.Item, error) {
	if strings.HasPrefix(key, "epochfence/fence/") && s.reads.Add(1) <= 2 {
		s.both.Done()
		s.both.Wait()
	}
	return s.Store.Get(ctx, key)
}

func TestFencesOfATopicAreAddedBesideEachOther(t *testing.T) {
	t.Parallel()
	store := &together{Store: memstore.New()}
	store.both.Add(2)
	s, err := cassink.Open(t.Context(), store, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var starts []epoch.Start
	for n := range int32(5) {
		o := origin()
		o.Partition.Number = n
		at := epoch.Position{Offset: epoch.Offset(n), Mark: epoch.NoMark}
		starts = append(starts, epoch.Start{Origin: o, Next: at, Earliest: at})
	}
	if err := s.Seed(t.Context(), starts); err != nil {
		t.Fatal(err)
	}
	for _, start := range starts {
		if f, err := s.Fence(t.Context(), start.Partition); err != nil || f.Next != start.Next.Offset {
			t.Errorf("%+v, %v", f, err)
		}
	}
}
