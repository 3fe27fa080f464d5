package epoch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestEachRefusalIsItsOwnAndSaysWhatItIsAbout(t *testing.T) {
	all := []error{
		epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrLogChanged,
		epoch.ErrForeignLease, epoch.ErrNoLease, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler,
	}
	held := epoch.Fence{Origin: at, Epoch: 6, Claim: other, Owner: "B"}
	for _, c := range []struct {
		err  error
		kind error
		says []string
	}{
		{&epoch.StaleError{Partition: orders0, Ours: mine, Held: held}, epoch.ErrStale,
			[]string{"billing/orders/0", mine.String(), other.String(), "epoch 6", `"B"`}},
		{&epoch.MovedError{Partition: orders0, From: 7, Next: 9}, epoch.ErrMoved, []string{"billing/orders/0", "9", "7"}},
		{&epoch.MissingError{Partition: orders0}, epoch.ErrMissing, []string{"billing/orders/0"}},
		{&epoch.LogChangedError{Partition: orders0, Fence: "log-1", Source: "log-2", Next: 9}, epoch.ErrLogChanged,
			[]string{"billing/orders/0", `"log-1"`, `"log-2"`, "9"}},
		{&epoch.ForeignLeaseError{Partition: orders0, Fence: "source-1", Source: "source-2", Owner: "B"}, epoch.ErrForeignLease,
			[]string{"billing/orders/0", `"source-1"`, `"source-2"`, `"B"`}},
	} {
		wrapped := fmt.Errorf("pgsink: commit: %w", c.err)
		for _, kind := range all {
			if errors.Is(wrapped, kind) != (kind == c.kind) {
				t.Errorf("%v: is %v", c.err, kind)
			}
		}
		for _, s := range c.says {
			if !strings.Contains(c.err.Error(), s) {
				t.Errorf("%v: does not say %q", c.err, s)
			}
		}
	}
}
