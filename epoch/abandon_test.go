package epoch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestAfterAbandonedCallsOnceItIsAbandonedAndNotWhenTheContextEnds(t *testing.T) {
	abandoned, abandon := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(epoch.WithAbandonment(t.Context(), abandoned))
	called := make(chan struct{})
	stop := epoch.AfterAbandoned(ctx, func() { close(called) })
	cancel()
	stopped := epoch.AfterAbandoned(ctx, func() { t.Error("called after stop") })
	if !stopped() {
		t.Error("stop returned false before the abandonment")
	}
	select {
	case <-called:
		t.Error("called as the context ended")
	default:
	}
	abandon()
	<-called
	if stop() {
		t.Error("stop returned true after the call")
	}
}

func TestAContextWithoutAbandonmentIsNeverAbandoned(t *testing.T) {
	if stop := epoch.AfterAbandoned(t.Context(), func() { t.Error("called") }); !stop() {
		t.Error("stop returned false")
	}
}

func TestAnAbandonedTransactionIsNotInDoubt(t *testing.T) {
	for _, err := range []error{nil, epoch.ErrAbandoned, errors.New("own"), fmt.Errorf("%w: connection lost", epoch.ErrInDoubt)} {
		got := epoch.Abandoned(err)
		if !errors.Is(got, epoch.ErrAbandoned) || errors.Is(got, epoch.ErrInDoubt) {
			t.Errorf("Abandoned(%v) = %v", err, got)
		}
	}
}
