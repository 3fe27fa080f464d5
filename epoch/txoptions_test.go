package epoch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestAfterAbandonedCallsOnceItIsAbandonedAndNotAfterStop(t *testing.T) {
	abandoned, abandon := context.WithCancel(context.Background())
	o := epoch.TxOptions{Abandoned: abandoned}
	called := make(chan struct{})
	stop := o.AfterAbandoned(func() { close(called) })
	stopped := o.AfterAbandoned(func() { t.Error("called after stop") })
	if !stopped() {
		t.Error("stop returned false before the abandonment")
	}
	abandon()
	<-called
	if stop() {
		t.Error("stop returned true after the call")
	}
}

func TestTheZeroTxOptionsAreNeverAbandoned(t *testing.T) {
	var none epoch.TxOptions
	if stop := none.AfterAbandoned(func() { t.Error("called") }); !stop() {
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
