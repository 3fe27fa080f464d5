package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/stacks"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file has the errors that users and sources see, and decides which word stands for an error in events,
// metrics, the audit log and remedies. Whether a message is at fault, and whether the partition halts, is
// decided in verdict.go and next.go.

// ErrLost is the cause of a tenure's context after the lease was lost. Confirm returns it
// when the source answered that the lease is not granted.
var ErrLost = errors.New("lease lost")

// ErrBlocked is returned by a source that can be read, and does not go on from the position until an
// operator has done what the error says.
var ErrBlocked = errors.New("needs an operator")

// ErrMayNotRemove is returned by [Remover.Remove] if this process lacks the permission to remove others.
var ErrMayNotRemove = errors.New("this process may not remove other members")

// Reasons for a lost lease other than a rebalance. Errors match them in addition to [ErrLost].
var (
	// ErrLeaseExpired is returned when the source acknowledged nothing from this process for
	// about the lease's term.
	ErrLeaseExpired = errors.New("lease expired")

	// ErrDrainOverrun is returned when a revoked partition was not given back in time.
	ErrDrainOverrun = errors.New("the partition was revoked and not given back in time")
)

// Kinds of [*PositionError], which match them with [errors.Is].
var (
	// ErrOffsetExpired is returned when messages may have been removed before they were applied: the
	// log begins above the position, or has a gap above it in which messages of the partition may
	// have been.
	ErrOffsetExpired = errors.New("messages may have been deleted before they were applied")

	// ErrTruncated is returned when the log ends below the position, or was rewritten below
	// it: messages that were applied are gone from the log, or are others now.
	ErrTruncated = errors.New("log was truncated below the position")

	// ErrOutOfOrder is returned when the source delivers an offset below the position.
	ErrOutOfOrder = errors.New("offset below the position came again")
)

// PositionError is the reason of a halt when the log and the position do not match. No message is
// skipped; an operator decides.
type PositionError struct {
	Partition epoch.Partition
	Kind      error        // ErrOffsetExpired, ErrTruncated or ErrOutOfOrder
	Position  epoch.Offset // where the fence is
	Found     epoch.Offset // what the log has instead: its beginning, its end, or the offset that came
}

func (e *PositionError) Error() string {
	const find = "; find out what is missing, then set the position with epochfence rewind"
	do := "the log continues at offset %d" + find
	switch {
	case errors.Is(e.Kind, ErrTruncated):
		do = "the log ends at offset %d, or has another message there" + find
	case errors.Is(e.Kind, ErrOutOfOrder):
		do = "offset %d came; nothing was applied again, and epochfence evict lets the owner read from its position again"
	}
	return fmt.Sprintf("%s: %v: the fence is at offset %d, "+do, e.Partition, e.Kind, e.Position, e.Found)
}

// Unwrap returns e.Kind.
func (e *PositionError) Unwrap() error { return e.Kind }

// HandlerError is the failure of a message: an error of its handler, or the database's
// refusal to commit what the handler wrote.
type HandlerError struct {
	Partition epoch.Partition
	Offset    epoch.Offset
	Attempts  int
	Err       error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("%s: the message at offset %d failed, attempt %d: %v", e.Partition, e.Offset, e.Attempts, e.Err)
}

// Unwrap returns the error of the handler or the database.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is the error for a panic of a handler. Its text is one line and names the
// functions that panicked.
type PanicError struct {
	Value any
	Stack []byte // all of it, as [debug.Stack] returns it

	text  string // of Value, whose methods are the user's code
	cause error  // Value, if it is an error
}

func newPanicError(value any, stack []byte) *PanicError {
	e := &PanicError{Value: value, Stack: stack}
	if err, is := value.(error); is {
		e.cause = inert.Error(err)
		e.text = e.cause.Error()
	} else {
		e.text = inert.Text(value)
	}
	return e
}

func (e *PanicError) Error() string {
	text := e.text
	if text == "" {
		text = inert.Text(e.Value)
	}
	text = "panic: " + text
	if _, panicked, found := strings.Cut(string(e.Stack), "\npanic("); found {
		_, callers, _ := strings.Cut(panicked, "\n")
		if in := stacks.Frames(callers, maxPanicFrames); len(in) > 0 {
			text += " in " + strings.Join(in, ", ")
		}
	}
	return text
}

const maxPanicFrames = 5

// Unwrap returns an error in which [errors.Is] and [errors.As] find the value of the panic,
// if that was an error.
func (e *PanicError) Unwrap() error { return e.cause }

// Inert marks e as safe: its text and its chain run no user code.
func (e *PanicError) Inert(inert.Mark) {}

// Permanent marks an error that no retry can fix. The message goes to [Handlers.OnFailure]
// at once. Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{inert.Error(err)}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Inert marks e as safe: [Permanent] made its error inert.
func (e *permanentError) Inert(inert.Mark) {}

func isPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}

// RetryAfter says that a message failed for a reason that passes for it alone, such as a customer whose bank does not
// answer, and that the partition need not wait. The consumer stores the message in the sink, in the transaction that
// moves the position past it, and calls the handler again once delay has passed by the sink's clock, within 2 to 3 s.
// Later messages are applied before it, also those of its key. Each replay that fails defers it again, by the delay of
// that RetryAfter or else by the last one. It becomes a dead letter, and OnFailure is not called, if a replay fails with
// [Permanent] or hangs, or after [Options.MaxDeferrals]. A rewind below the message applies it twice.
//
// An error that is [epoch.ErrTransient] or [epoch.ErrUnhealthy] stays one: the database is at fault, not the message.
// [Permanent] prevails, too. If the sink keeps no dead letters, err counts as an attempt. RetryAfter(nil, delay) returns
// nil.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &deferredError{inert.Error(err), delay}
}

type deferredError struct {
	err   error
	delay time.Duration
}

func (e *deferredError) Error() string {
	return fmt.Sprintf("to be tried again after %v: %v", e.delay, e.err)
}
func (e *deferredError) Unwrap() error { return e.err }

// Inert marks e as safe: [RetryAfter] made its error inert.
func (e *deferredError) Inert(inert.Mark) {}

// deferral returns the delay after which a handler wants the message again, if it does.
func deferral(err error) (delay time.Duration, ok bool) {
	d, ok := errors.AsType[*deferredError](err)
	if !ok || isPermanent(err) {
		return 0, false
	}
	return d.delay, true
}

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

var errHung = errors.New("a call did not return after its context had ended, and was abandoned")

type hungError struct{ call Overdue }

func (e *hungError) Error() string { return e.call.String() }
func (e *hungError) Unwrap() error { return errHung }

// HungError is returned by [Run] when calls of the user's functions hang: they did not return after
// their contexts had ended, and were abandoned. Nothing that they still do is committed,
// unless it is the sink that hangs (FunctionSink). Only the end of the process ends their goroutines, so exit and restart it.
type HungError struct {
	Calls []Overdue // by partition; at least one
}

// Error returns a line for each call, and the stack of its goroutine.
func (e *HungError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "consumer: %d calls hang and were abandoned; restart the process, and pass each call's context to what it waits for", len(e.Calls))
	for _, c := range e.Calls {
		fmt.Fprintf(&b, "\n%s", c)
		if c.Stack != "" {
			fmt.Fprintf(&b, "\n%s", c.Stack)
		}
	}
	return b.String()
}

// String returns a line that begins with the partition: what hangs, for how long by now, and where.
func (o Overdue) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", o.Partition)
	switch o.Function {
	case FunctionOnFailure:
		b.WriteString("OnFailure hangs")
	case FunctionReplay:
		b.WriteString("the handler of a dead letter hangs")
	case FunctionBackground:
		b.WriteString("the background work hangs")
	case FunctionSink:
		b.WriteString("the sink hangs")
	default:
		b.WriteString("the handler hangs")
	}
	if o.Offset >= 0 {
		fmt.Fprintf(&b, " on the message at offset %d", o.Offset)
	}
	fmt.Fprintf(&b, ", epoch %d, for %v", o.Epoch, time.Since(o.Since).Round(time.Second))
	if at := stacks.Frame(o.Stack); at != "" {
		fmt.Fprintf(&b, ", in %s", at)
	}
	return b.String()
}
