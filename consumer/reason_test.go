package consumer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestAReasonIsWhatSaysMostInAnError(t *testing.T) {
	of := func(err error) error { return fmt.Errorf("consumer: sink: %w", err) }
	no := errors.New("no")
	position := func(kind error) error { return &PositionError{Kind: kind} }
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{nil, ReasonNone},
		{no, ReasonSink},
		{of(&HandlerError{Err: no}), ReasonMessageFailed},
		{&onFailureError{&HandlerError{Err: no}, no}, ReasonOnFailureFailed},
		{&onFailureError{&HandlerError{Err: no}, errors.Join(no, epoch.ErrUnhealthy)}, ReasonOnFailureFailed},
		{of(epoch.ErrTxEndedByHandler), ReasonHandlerEndedTx},
		{of(&epoch.LogChangedError{}), ReasonLogChanged},
		{of(&epoch.ForeignLeaseError{}), ReasonForeignLease},
		{&sourceError{position(ErrOffsetExpired)}, ReasonMessagesExpired},
		{&sourceError{position(ErrTruncated)}, ReasonLogTruncated},
		{position(ErrOutOfOrder), ReasonOutOfOrder},
		{of(&epoch.MissingError{}), ReasonMissingFence},
		{of(epoch.ErrUnhealthy), ReasonUnhealthy},
		{errors.Join(epoch.ErrInDoubt, epoch.ErrUnhealthy), ReasonUnhealthy},
		{of(&epoch.StaleError{}), ReasonStale},
		{of(&epoch.MovedError{}), ReasonMoved},
		{errors.Join(epoch.ErrInDoubt, epoch.ErrTransient), ReasonInDoubt},
		{of(epoch.ErrTransient), ReasonTransient},
		{errTimeout, ReasonTimeout},
		{of(context.DeadlineExceeded), ReasonTimeout},
		{&unconfirmedError{err: context.DeadlineExceeded}, ReasonNotConfirmed},
		{&unconfirmedError{err: no}, ReasonNotConfirmed},
		{of(&sourceError{no}), ReasonSource},
		{of(ErrLost), ReasonLeaseTaken},
		{fmt.Errorf("%w: %w", ErrLost, ErrLeaseExpired), ReasonLeaseExpired},
		{fmt.Errorf("%w: %w", ErrLost, ErrDrainOverrun), ReasonDrainOverrun},
	} {
		if got := reasonOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestEachReasonHasAWordOfItsOwn(t *testing.T) {
	known := map[string]bool{ReasonNone.String(): true}
	for _, r := range Reasons() {
		if s := r.String(); known[s] || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(s) {
			t.Errorf("%d is %q", r, s)
		}
		known[r.String()] = true
	}
	if len(known) != len(reasonNames) {
		t.Errorf("%d names for %d reasons", len(reasonNames), len(known))
	}
	for _, r := range []Reason{ReasonNone, ReasonPaused, ReasonStale, ReasonTransient, ReasonSink, ReasonNotConfirmed, ReasonLeaseExpired} {
		if r.NeedsOperator() {
			t.Errorf("%v needs an operator", r)
		}
	}
	for _, r := range []Reason{ReasonMessageFailed, ReasonLogChanged, ReasonMissingFence, ReasonElsewhere, ReasonUnhealthy} {
		if !r.NeedsOperator() {
			t.Errorf("%v passes", r)
		}
	}
}
