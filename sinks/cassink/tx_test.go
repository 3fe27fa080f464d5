package cassink_test

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func TestAHandlerReadsWhileItsFirstChangeBeginsAReplay(t *testing.T) {
	t.Parallel()
	s, err := cassink.Open(t.Context(), memstore.New(), cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	start := epoch.Position{Mark: epoch.NoMark}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: origin(), Next: start, Earliest: start}}); err != nil {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), s, orders)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: 1, Owner: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	m := epoch.Message{Partition: orders, Mark: epoch.NoMark, Replay: 7}
	a := epoch.Advance{Partition: orders, Claim: mine.Claim, Mark: epoch.NoMark}
	err = s.Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		var all errgroup.Group
		all.Go(func() error { return tx.Load(ctx, "stock/1", "stock/2") })
		all.Go(func() error { _, err := tx.Read(ctx, "stock/2"); return err })
		all.Go(func() error {
			_, err := tx.Update(ctx, m, "stock/1", func(guard.State) (guard.State, []byte, error) { return guard.Text("1"), nil, nil })
			return err
		})
		return all.Wait()
	})
	if err != nil {
		t.Error(err)
	}
}
