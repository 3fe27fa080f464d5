package cassink_test

import (
	"context"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

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
	seen, err := epoch.FenceOf(t.Context(), sink, orders)
	must(t, err)
	s.old, s.n = old, 1
	_, err = sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 1, Owner: "b"}))
	if err != nil {
		t.Error(err)
	}
}
