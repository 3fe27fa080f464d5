package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which word stands for an error in events, metrics, the audit log and remedies.
// Whether the partition halts or tries again is decided in verdict.go and next.go.

// Reason says in a word why a partition has halted or was lost, why an attempt to claim it failed,
// or why a transaction did not commit. The [Event]'s Err says it at length. The names do not
// change, so that they can be counted, stored, and looked up in a runbook. More may be added.
type Reason uint8

// The reasons. [Reason.NeedsOperator] is true for ReasonMessageFailed to ReasonUnhealthy.
const (
	ReasonNone Reason = iota

	ReasonMessageFailed   // a message has used up its attempts, or failed with [Permanent], and there is no OnFailure
	ReasonOnFailureFailed // OnFailure returned an error
	ReasonHandlerEndedTx  // a handler ended the fenced transaction by itself: [epoch.ErrTxEndedByHandler]
	ReasonLogChanged      // the fence counts the offsets of another log: [epoch.ErrLogChanged]
	ReasonForeignLease    // another issuer leases the partition: [epoch.ErrForeignLease]
	ReasonMessagesExpired // the log may have lost messages before they were applied: [ErrOffsetExpired]
	ReasonLogTruncated    // the log ends below the position: [ErrTruncated]
	ReasonOutOfOrder      // an offset below the position came again: [ErrOutOfOrder]
	ReasonBlocked         // the source does not go on until an operator has acted: [ErrBlocked]
	ReasonMissingFence    // the sink has lost the fence: [epoch.ErrMissing]
	ReasonElsewhere       // another database of the sink keeps the partition: [epoch.ErrElsewhere]
	ReasonUnhealthy       // a table or privilege is missing, or the disk is full: [epoch.ErrUnhealthy]
	ReasonPaused          // an operator has paused the partition: [epoch.ErrPaused]
	ReasonStale           // the fence belongs to a later claim, or another claim came first: [epoch.ErrStale]
	ReasonMoved           // the fence was not where the transaction began: [epoch.ErrMoved]
	ReasonInDoubt         // whether the transaction committed is not known: [epoch.ErrInDoubt]
	ReasonTransient       // a deadlock, a serialization failure, a lock not granted: [epoch.ErrTransient]
	ReasonTimeout         // a transaction or an attempt to claim took longer than [Options.BatchTimeout]
	ReasonNotConfirmed    // the source did not confirm the lease
	ReasonSource          // the source could not be asked or read
	ReasonSink            // the sink could not be reached, or failed in an unknown way
	ReasonLeaseTaken      // the source took the partition away
	ReasonLeaseExpired    // the source heard nothing of this process for the term of the lease: [ErrLeaseExpired]
	ReasonDrainOverrun    // the partition was revoked and not given back in time: [ErrDrainOverrun]
	ReasonHung            // a call of a user's function does not return, and the partition was given up; see [Overdue]
	numReasons
)

var reasonNames = [...]string{
	"none", "message_failed", "on_failure_failed", "handler_ended_tx", "log_changed", "foreign_lease", "messages_expired",
	"log_truncated", "out_of_order", "blocked", "missing_fence", "elsewhere", "unhealthy", "paused", "stale", "moved", "in_doubt", "transient", "timeout",
	"not_confirmed", "source", "sink", "lease_taken", "lease_expired", "drain_overrun", "hung",
}

// String returns a word of a-z and underscores.
func (r Reason) String() string {
	if int(r) >= len(reasonNames) {
		return fmt.Sprintf("Reason(%d)", int(r))
	}
	return reasonNames[r]
}

// NeedsOperator reports whether an operator must fix a message, a database, a log or a deployment.
// ReasonPaused lasts until a resume, ReasonHung until the call returns. All other reasons pass, and
// the process retries until then. This holds for [Halted]. [Retried] and [Transacted] have
// ReasonMessageFailed from the first attempt of a message on.
func (r Reason) NeedsOperator() bool { return r >= ReasonMessageFailed && r <= ReasonUnhealthy }

// Reasons returns all reasons except ReasonNone, in order.
func Reasons() []Reason {
	var rs []Reason
	for r := ReasonNone + 1; r < numReasons; r++ {
		rs = append(rs, r)
	}
	return rs
}

// reasonOf returns the reason of an error of this package, a sink or a source. The most specific
// reason comes first: a database may be unhealthy and in doubt.
func reasonOf(err error) Reason {
	for _, known := range []struct {
		is     error
		reason Reason
	}{
		{epoch.ErrTxEndedByHandler, ReasonHandlerEndedTx},
		{epoch.ErrLogChanged, ReasonLogChanged},
		{epoch.ErrForeignLease, ReasonForeignLease},
		{epoch.ErrMissing, ReasonMissingFence},
		{epoch.ErrElsewhere, ReasonElsewhere},
		{epoch.ErrPaused, ReasonPaused},
		{ErrOffsetExpired, ReasonMessagesExpired},
		{ErrTruncated, ReasonLogTruncated},
		{ErrOutOfOrder, ReasonOutOfOrder},
		{ErrBlocked, ReasonBlocked},
		{ErrLeaseExpired, ReasonLeaseExpired},
		{ErrDrainOverrun, ReasonDrainOverrun},
		{ErrLost, ReasonLeaseTaken},
		{epoch.ErrStale, ReasonStale},
		{epoch.ErrMoved, ReasonMoved},
	} {
		if errors.Is(err, known.is) {
			return known.reason
		}
	}
	var (
		onFailure   *onFailureError
		message     *HandlerError
		unconfirmed *unconfirmedError
		source      *sourceError
		hung        *hungError
	)
	switch {
	case err == nil:
		return ReasonNone
	case errors.As(err, &hung):
		return ReasonHung
	case errors.As(err, &onFailure):
		return ReasonOnFailureFailed
	case errors.As(err, &message):
		return ReasonMessageFailed
	case errors.Is(err, epoch.ErrUnhealthy):
		return ReasonUnhealthy
	case errors.As(err, &unconfirmed):
		return ReasonNotConfirmed
	case errors.As(err, &source):
		return ReasonSource
	case errors.Is(err, epoch.ErrInDoubt):
		return ReasonInDoubt
	case errors.Is(err, epoch.ErrTransient), errors.Is(err, epoch.ErrOwnTransaction):
		return ReasonTransient
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout
	default:
		return ReasonSink
	}
}

// sourceError marks an error of the source, whose text alone does not say so.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// onFailureError is the failure of OnFailure, together with that of the message. errors.Is finds
// both.
type onFailureError struct{ message, err error }

func (e *onFailureError) Error() string   { return errors.Join(e.message, e.err).Error() }
func (e *onFailureError) Unwrap() []error { return []error{e.message, e.err} }
