package epoch_test

import (
	"context"
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
