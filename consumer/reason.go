package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// Reason says in a word why a partition has halted, why an attempt to claim it failed,
// why a transaction did not commit, or why a partition was lost: what an [Event]'s Err says
// at length. There are few, and what they are called does not change, so that they can be
// counted, stored, and looked up in a runbook. More may be added.
type Reason uint8

// The reasons. Those up to ReasonUnhealthy last until an operator does something; see
// [Reason.NeedsOperator].
const (
	ReasonNone Reason = iota // nothing was wrong

	ReasonMessageFailed   // a message has used up its attempts, or failed with [Permanent], and there is no OnFailure
	ReasonOnFailureFailed // OnFailure returned an error
	ReasonHandlerEndedTx  // a handler ended the fenced transaction by itself: [epoch.ErrTxEndedByHandler]
	ReasonLogChanged      // the fence counts the offsets of another log: [epoch.ErrLogChanged]
	ReasonForeignLease    // another deployment leases the partition from elsewhere: [epoch.ErrForeignLease]
	ReasonMessagesExpired // the log lost messages that were never applied: [ErrOffsetExpired]
	ReasonLogTruncated    // the log ends below the position: [ErrTruncated]
	ReasonOutOfOrder      // an offset below the position came again: [ErrOutOfOrder]
	ReasonMissingFence    // the sink has lost the fence: [epoch.ErrMissing]
	ReasonElsewhere       // another database of the sink keeps the partition: [epoch.ErrElsewhere]
	ReasonUnhealthy       // a table, a right or a disk is missing: [epoch.ErrUnhealthy]
	ReasonPaused          // an operator has paused the partition, and it is as it should be: [epoch.ErrPaused]
	ReasonStale           // the fence belongs to a later claim, or somebody else's claim came first: [epoch.ErrStale]
	ReasonMoved           // the fence was not where the transaction began: [epoch.ErrMoved]
	ReasonInDoubt         // whether the transaction committed is not known: [epoch.ErrInDoubt]
	ReasonTransient       // a deadlock, a serialization failure, a lock not granted: [epoch.ErrTransient]
	ReasonTimeout         // a transaction or an attempt to claim took longer than [Options.BatchTimeout]
	ReasonNotConfirmed    // the source did not confirm the lease
	ReasonSource          // the source could not be asked or read
	ReasonSink            // the sink could not be reached, or failed in a way that it has no name for
	ReasonLeaseTaken      // the source took the partition away
	ReasonLeaseExpired    // the source heard nothing of this process for the term of the lease: [ErrLeaseExpired]
	ReasonDrainOverrun    // the partition was revoked and not given back in time: [ErrDrainOverrun]
	ReasonHung            // a call of the user's does not return, so that the partition was given up; see [Overdue]
	numReasons
)

var reasonNames = [...]string{
	"none", "message_failed", "on_failure_failed", "handler_ended_tx", "log_changed", "foreign_lease", "messages_expired",
	"log_truncated", "out_of_order", "missing_fence", "elsewhere", "unhealthy", "paused", "stale", "moved", "in_doubt", "transient", "timeout",
	"not_confirmed", "source", "sink", "lease_taken", "lease_expired", "drain_overrun", "hung",
}

// String is a word of a-z and underscores.
func (r Reason) String() string {
	if int(r) >= len(reasonNames) {
		return fmt.Sprintf("Reason(%d)", int(r))
	}
	return reasonNames[r]
}

// NeedsOperator reports whether what is wrong lasts until somebody fixes it: a message, a
// database, a log, a deployment. Everything else passes, and is tried again until then.
func (r Reason) NeedsOperator() bool { return r >= ReasonMessageFailed && r <= ReasonUnhealthy }

// Reasons returns all reasons but ReasonNone, in their order.
func Reasons() []Reason {
	var rs []Reason
	for r := ReasonNone + 1; r < numReasons; r++ {
		rs = append(rs, r)
	}
	return rs
}

// reasonOf is what an error of this package, a sink or a source means. What says most
// comes first: a database may be unhealthy and in doubt.
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

// sourceError is an error that the source returned.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// onFailureError: OnFailure failed on a message that had failed.
type onFailureError struct{ message, err error }

func (e *onFailureError) Error() string   { return errors.Join(e.message, e.err).Error() }
func (e *onFailureError) Unwrap() []error { return []error{e.message, e.err} }
