package cassink_test

import (
	"context"
	"errors"
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
		if f, err := epoch.FenceOf(t.Context(), s, start.Partition); err != nil || f.Next != start.Next.Offset {
			t.Errorf("%+v, %v", f, err)
		}
	}
}

func TestAFenceThatIsMissingIsThereForAnOperatorWhileNoneIsAdded(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s, err := cassink.Open(t.Context(), store, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	starts := func(log string, count int32) (all []epoch.Start) {
		for n := range count {
			o := origin()
			o.Log, o.Partition.Number = log, n
			all = append(all, epoch.Start{Origin: o, Next: epoch.Position{Mark: epoch.NoMark}, Earliest: epoch.Position{Mark: epoch.NoMark}})
		}
		return all
	}
	if err := s.Seed(t.Context(), starts("one", 2)); err != nil {
		t.Fatal(err)
	}
	second := starts("one", 2)[1].Partition
	for item, err := range store.List(t.Context(), "epochfence/fence/") {
		if err == nil && strings.HasSuffix(item.Key, "/1") {
			err = store.Delete(t.Context(), item)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := epoch.FenceOf(t.Context(), s, second); !errors.Is(err, epoch.ErrMissing) {
		t.Fatalf("the fence is still there: %v", err)
	}
	if err := s.Seed(t.Context(), starts("another", 3)); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("err = %v", err)
	}
	if f, err := epoch.FenceOf(t.Context(), s, second); err != nil || f.Log != "one" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := epoch.FenceOf(t.Context(), s, starts("another", 3)[2].Partition); !errors.Is(err, epoch.ErrMissing) {
		t.Errorf("a fence was added: %v", err)
	}
}
