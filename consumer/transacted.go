package consumer

import (
	"errors"

	"github.com/epochfence/epochfence/epoch"
)

// This file classifies the result of a transaction for metrics. What follows from it is decided in
// verdict.go, whose order of cases this file repeats.

// transacted returns the one event of a transaction. Several partitions share it, so that rates of
// commits can be counted without a division.
func transacted(tried []trial, r result) Transacted {
	e := Transacted{Partitions: len(tried), Took: r.took, Handling: r.handling}
	lost := false
	for _, t := range tried {
		e.Messages += t.messages
		lost = lost || t.lost
	}
	if r.err == nil {
		return e
	}
	_, refused := refusal(r.err)
	switch {
	case errors.Is(r.err, epoch.ErrTxEndedByHandler):
		e.Outcome, e.Reason = OutcomeFailed, ReasonHandlerEndedTx
		return e
	case refused != (epoch.Partition{}):
		e.Outcome = OutcomeRefused
	case errors.Is(r.err, epoch.ErrInDoubt):
		e.Outcome = OutcomeInDoubt
	case lost:
		e.Outcome, e.Reason = OutcomeLost, ReasonLeaseTaken
		return e
	default:
		e.Outcome = OutcomeFailed
	}
	e.Reason = reasonOf(r.err)
	if e.Outcome == OutcomeFailed && r.timedOut && !errors.Is(r.err, epoch.ErrUnhealthy) && !errors.Is(r.err, epoch.ErrTransient) {
		e.Reason = ReasonTimeout
	}
	if r.handler != nil && e.Outcome == OutcomeFailed {
		e.Failure = failureOf(r)
		if e.Failure <= FailureGoexit {
			e.Reason = ReasonMessageFailed
		}
	}
	return e
}

// failureOf classifies in the order of [policy.failure].
func failureOf(r result) Failure {
	var panicked *PanicError
	switch {
	case isPermanent(r.handler):
		return FailurePermanent
	case errors.Is(r.handler, errGoexit):
		return FailureGoexit
	case errors.Is(r.err, epoch.ErrUnhealthy):
		return FailureUnhealthy
	case errors.Is(r.err, epoch.ErrTransient), errors.Is(r.handler, epoch.ErrOwnTransaction):
		return FailureTransient
	case errors.As(r.handler, &panicked):
		return FailurePanic
	case r.timedOut:
		return FailureTimeout
	default:
		return FailureError
	}
}

// reason returns the reason of a retry. A message that has failed an attempt is the reason,
// whatever its error is.
func (v verdict) reason() Reason {
	if v.finding == attempt {
		return ReasonMessageFailed
	}
	return reasonOf(v.err)
}
