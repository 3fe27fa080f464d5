package operate

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the entries of the audit log, their kinds and their trace ids, which package fenceotel
// sets. Sinks write the entries; which kinds end a halt or forgive hangs is decided here.

// Decision is an entry of a sink's audit log: a claim, a refusal, a halt, or an operator
// action, with its reason. Commits have no entries, except runs of jobs. SQL sinks delete entries after 90 days, and
// entries that no operator caused once there are about 200,000 newer ones.
type Decision struct {
	// ID rises in the order of the log. At is the time by the sink's clock. Role is the database user that was
	// connected, or empty. The sink sets them.
	ID   int64
	At   time.Time
	Role string

	Kind      DecisionKind
	Partition epoch.Partition

	// Epoch, Claim and Owner belong to the claim that the decision is about.
	Epoch epoch.Epoch
	Claim epoch.ClaimID
	Owner string

	// From and To are the positions before and after. They are equal if the position did not move,
	// and -1 if unknown. From is -1 for the first claim of a fence. For hangs, see [DecidedHang].
	From, To epoch.Offset

	// Reason is a text for operators. By is the operator, or empty.
	Reason, By string

	// Entry is the ID of an entry of the outbox that an operator has acted on, and IdempotencyKey its key.
	Entry          int64
	IdempotencyKey string

	// TraceID is the trace id of the decision in hexadecimal digits, or empty. See [WithTraceID].
	TraceID string
}

// About names the partition of the decision, or the group if it is about the group alone.
func (d Decision) About() string { return strings.TrimSuffix(d.Partition.String(), `/""/0`) }

// DecisionKind is the kind of a decision.
type DecisionKind string

const (
	// DecidedClaim: a claim was swapped in, at position To. The transaction of the claim records
	// it.
	DecidedClaim DecisionKind = "claim"

	// DecidedReplayRequest: an operator has requested that the handler gets the dead letter at
	// offset From again.
	DecidedReplayRequest DecisionKind = "replay-request"

	// DecidedReplayWithdraw: an operator has withdrawn that request.
	DecidedReplayWithdraw DecisionKind = "replay-withdraw"

	// DecidedDiscard: an operator has deleted the dead letter at offset From.
	DecidedDiscard DecisionKind = "discard"

	// DecidedOutboxRetry: an operator has requested that an entry of the outbox is sent now.
	DecidedOutboxRetry DecisionKind = "outbox-retry"

	// DecidedOutboxDiscard: an operator has deleted an entry of the outbox.
	DecidedOutboxDiscard DecisionKind = "outbox-discard"

	// DecidedReplay: the dead letter at offset From was applied.
	DecidedReplay DecisionKind = "replay"

	// DecidedReplayFailure: the replay of the dead letter at offset From failed. The dead letter
	// stays.
	DecidedReplayFailure DecisionKind = "replay-failure"

	// DecidedStale: a transaction was refused because the fence belongs to a later claim. A
	// consumer records this kind and the kinds below after the fact, at best effort.
	DecidedStale DecisionKind = "stale"

	// DecidedHalt: the partition has halted.
	DecidedHalt DecisionKind = "halt"

	// DecidedRecovery: a partition that had halted is healthy and has nothing to apply. If it has
	// messages to apply there is no such entry, because its position shows that it continues.
	DecidedRecovery DecisionKind = "recovery"

	// DecidedLoss: the partition was lost.
	DecidedLoss DecisionKind = "loss"

	// DecidedInDoubt: the position of the next claim has shown the outcome of a transaction that
	// was in doubt.
	DecidedInDoubt DecisionKind = "in-doubt"

	// DecidedHang: a call did not return after its context had ended, and the consumer gave the
	// partition up. The handler hangs on one message with an offset in [From, To). Both are -1 if
	// the call was not for a message at the position.
	DecidedHang DecisionKind = "hang"

	// DecidedTick: the tick at From of a job of package schedule was run. Reason has its times, its
	// outcome and the number of attempts. Of a job that runs more often than once a minute, one tick a
	// minute is recorded, and each whose outcome differs from that of the tick before.
	DecidedTick DecisionKind = "tick"

	// DecidedSuspected: Owner suspected another process of the group to have died, and had it removed. The
	// Partition is the group alone.
	DecidedSuspected DecisionKind = "suspected"

	// DecidedOnFailureHang: as DecidedHang, and the call was OnFailure for the message at From.
	DecidedOnFailureHang DecisionKind = "on-failure-hang"
)

// Operator actions on a fence. Each is recorded when it is carried out.
const (
	DecidedRewind = DecisionKind(ActRewind)
	DecidedSkip   = DecisionKind(ActSkip)
	DecidedPause  = DecisionKind(ActPause)
	DecidedResume = DecisionKind(ActResume)
	DecidedEvict  = DecisionKind(ActEvict)
	DecidedRebase = DecisionKind(ActRebase)
	DecidedRun    = DecisionKind(ActRun)
)

// ReplacesClaim reports whether the decision replaced the claim in the fence.
func (k DecisionKind) ReplacesClaim() bool {
	switch k {
	case DecidedClaim, DecidedRewind, DecidedSkip, DecidedPause, DecidedResume, DecidedEvict, DecidedRebase, DecidedRun:
		return true
	default:
		return false
	}
}

// RecordedByConsumer reports whether consumers record this kind, through [Records]. The sink records
// decisions of other kinds when it makes them.
func (k DecisionKind) RecordedByConsumer() bool {
	switch k {
	case DecidedStale, DecidedHalt, DecidedRecovery, DecidedLoss, DecidedInDoubt, DecidedHang, DecidedOnFailureHang, DecidedTick, DecidedSuspected:
		return true
	default:
		return false
	}
}

// WithoutOperator returns d without an operator in By or Owner, and with a Reason of at most [MaxText]
// bytes. A sink stores the decisions of consumers in this form.
func (d Decision) WithoutOperator() Decision {
	d.By, d.Reason = "", Text(d.Reason, MaxText)
	if strings.HasPrefix(d.Owner, epoch.ReservedOwner) {
		d.Owner = ""
	}
	return d
}

// ForgivesHangs reports whether earlier hangs no longer count, because an operator has let the
// partition continue.
func (k DecisionKind) ForgivesHangs() bool {
	switch k {
	case DecidedRewind, DecidedSkip, DecidedResume, DecidedRebase, DecidedRun:
		return true
	default:
		return false
	}
}

type traceIDKey struct{}

// WithTraceID returns a context for [epoch.Sink.Claim], which records the trace id in the audit
// log.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceIDKey{}, id)
}

// TraceID returns what [WithTraceID] has set, or the empty string.
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceIDKey{}).(string)
	return id
}

// InTrace returns err with a trace id, which the audit log records. An [epoch.Sink] that traces
// another sink wraps its errors with InTrace. If err is nil or id is empty, InTrace returns err.
func InTrace(err error, id string) error {
	if err == nil || id == "" {
		return err
	}
	return &tracedError{err, id}
}

// TraceOf returns the trace id that [InTrace] has set, or the empty string.
func TraceOf(err error) string {
	if t, ok := errors.AsType[*tracedError](err); ok {
		return t.id
	}
	return ""
}

type tracedError struct {
	err error
	id  string
}

func (e *tracedError) Error() string { return e.err.Error() }
func (e *tracedError) Unwrap() error { return e.err }
