package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func under(e epoch.Epoch) epoch.Fence {
	f := epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "nightly"}, Log: lease.FenceLog}}
	f.Epoch = e
	return f
}

func TestAStepUnderALockChangesAnItemOnceWhoeverHasTheLock(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	step := func(e epoch.Epoch, n int64) error {
		_, err := guard.Under(s, under(e), n).Update(t.Context(), "report", add(fmt.Sprint(n)))
		return err
	}
	must(t, step(3, 0))
	must(t, step(3, 0)) // again, by the same holder
	must(t, step(4, 0)) // by the next, which does not know how far the one before came
	must(t, step(4, 1))
	for _, x := range []struct {
		e    epoch.Epoch
		n    int64
		want error
	}{
		{3, 1, guard.ErrStale}, // the one before has woken up
		{3, 2, guard.ErrStale},
		{4, 0, guard.ErrPassed},
		{5, 0, guard.ErrPassed},
	} {
		if err := step(x.e, x.n); !errors.Is(err, x.want) {
			t.Errorf("step %d under epoch %d: %v, want %v", x.n, x.e, err, x.want)
		}
	}
	if got := read(t, s, "report"); string(got.Value) != "0 1" {
		t.Errorf("%q", got.Value)
	}
	for _, err := range []error{step(0, 2), step(4, -1)} {
		if err == nil {
			t.Error("no claim, or no step, was accepted")
		}
	}
}

// The holder stands still between the look at its lease and the write of the item.
func TestAHolderThatWasReplacedDoesNotChangeTheItemOfItsLock(t *testing.T) {
	t.Parallel()
	sink, leases, items := memsink.New(), memstore.New(), memstore.New()
	claim := func(name string) *lease.Claimed[*memsink.Tx] {
		m, err := lease.Open(t.Context(), leases, lease.Options{Group: "billing", Name: name, TTL: time.Second, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		t.Cleanup(m.Close)
		h, err := m.Acquire(t.Context(), "nightly")
		must(t, err)
		c, err := lease.Claim(t.Context(), h, sink)
		must(t, err)
		return c
	}
	first := claim("first")
	stands := guard.Under(items, first.Fence(), 1)
	must(t, first.Release(t.Context())) // as the loss of the lease that it does not see
	second := claim("second")
	must(t, second.Do(t.Context(), func(ctx context.Context, _ *memsink.Tx, _ epoch.Epoch) error {
		_, err := guard.Under(items, second.Fence(), 1).Update(ctx, "report", add("second"))
		return err
	}))
	if _, err := stands.Update(t.Context(), "report", add("first")); !errors.Is(err, guard.ErrStale) {
		t.Errorf("the holder before: %v", err)
	}
	if got := read(t, items, "report"); string(got.Value) != "second" {
		t.Errorf("%q", got.Value)
	}
}
