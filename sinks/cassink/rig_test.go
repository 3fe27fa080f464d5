package cassink_test

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// owner is a sink that has claimed a partition.
type owner struct {
	*testing.T
	sink      *cassink.Sink
	partition epoch.Partition
	fence     epoch.Fence
}

func owns(t *testing.T, s cas.Store, p epoch.Partition) *owner {
	t.Helper()
	sink, err := cassink.Open(t.Context(), s, cassink.Options{})
	must(t, err)
	o := epoch.Origin{Partition: p, Log: "log", Source: "source"}
	at := epoch.Position{Mark: epoch.NoMark}
	must(t, sink.Seed(t.Context(), []epoch.Start{{Origin: o, Next: at, Earliest: at}}))
	w := &owner{T: t, sink: sink, partition: p}
	w.claims()
	return w
}

func (w *owner) claims() {
	w.Helper()
	seen, err := epoch.FenceOf(w.Context(), w.sink, w.partition)
	must(w.T, err)
	w.fence, err = w.sink.Claim(w.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 1, Owner: "owner"}))
	must(w.T, err)
}

// applies commits the messages before an offset, one in each call.
func (w *owner) applies(to epoch.Offset, handle func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error) error {
	a := epoch.Advance{Partition: w.fence.Partition, Claim: w.fence.Claim, From: w.fence.Next, To: to, Mark: epoch.NoMark}
	var calls []func(context.Context, *cassink.Tx) error
	for offset := a.From; offset < to; offset++ {
		m := epoch.Message{Partition: w.fence.Partition, Offset: offset, Mark: epoch.NoMark}
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error { return handle(ctx, tx, m) })
	}
	err := w.sink.Commit(w.Context(), []epoch.Advance{a}, epoch.TxOptions{}, calls...)
	if err == nil {
		w.fence.Next = to
	}
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func words(t *testing.T, s cas.Store, key string) string {
	t.Helper()
	state, err := guard.Read(t.Context(), s, key)
	must(t, err)
	return string(state.Value)
}

func sets(ctx context.Context, tx *cassink.Tx, m epoch.Message, key string) error {
	_, err := tx.Update(ctx, m, key, func(guard.State) (guard.State, []byte, error) { return guard.Text("x"), nil, nil })
	return err
}

const fenceKey = "epochfence/fence/billing/orders/3"

func second[T any](_ T, err error) error { return err }
