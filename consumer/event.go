package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/failover"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the events for Options.Observe, and which one a transaction's result is: it repeats for
// operators what verdict.go decides, and decides nothing. report.go sends most of them; status.go and
// operate/stats derive states and numbers from them.

// Event is one of [Joined], [Left], [Transacted], [Unrecorded], [Deferring] and [SnapshotsHeld], which are about the process,
// [Suspected] and [SuspicionWrong], which are about another process of the group, and
// [Granted], [NotClaimed], [Claimed], [Advanced], [Stale], [InDoubt], [Halted], [Resumed],
// [Drained], [Lost], [Retried], [Overdue], [Returned], [WentBack], [Replayed] and [Behind], which
// are about a partition. More may be added. [Status] derives the current state from events. Package
// operate/stats counts what has happened since the process started.
//
// A tenure begins with Granted and ends with Drained or Lost. A Next of -1 means that this process
// has not claimed the partition yet.
type Event interface{ event() }

// Joined reports that this process is a member of the group. It may have no partitions.
type Joined struct{}

// Left reports that this process is not a member of the group, as far as it knows. [Run] rejoins.
type Left struct {
	Cause error // nil when Run has ended in good order
}

// Granted reports that the source has granted this process a partition. It is claimed next.
type Granted struct {
	Partition epoch.Partition
}

// NotClaimed reports that an attempt to claim a partition failed. Another attempt follows as long
// as the partition is granted. If the lease is lost meanwhile, [Lost] is reported instead.
type NotClaimed struct {
	Partition epoch.Partition
	Reason    Reason // ReasonStale: another claim came first
	Err       error
	Took      time.Duration // this attempt
}

// Claimed reports that this process has claimed a partition and starts at Fence.Next.
type Claimed struct {
	Fence    epoch.Fence
	Seen     epoch.Fence   // the fence it replaced
	Halted   bool          // the partition stays Halted: its transactions keep failing, and a claim alone does not end that
	Took     time.Duration // this attempt, from the read of the fence
	Attempts int           // this one and those that failed before it
	Waited   time.Duration // the total: since the grant, or since the last claim ended
}

// Advanced reports that a transaction committed and moved this partition's position.
type Advanced struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	From, To  epoch.Offset
	Messages  int           // zero where the log had none in between
	Failed    int           // of Messages, those that OnFailure took
	Deferred  int           // of Messages, those that [RetryAfter] has stored for later
	Bytes     int           // of keys, values and headers
	Took      time.Duration // the whole transaction, which other partitions may have shared

	// Oldest and Newest are the times of the first and the last message. They are zero without
	// messages, or if the source has no times.
	Oldest, Newest time.Time

	// Lag is the number of messages to apply after To, as of the last read. It is -1 if the source
	// does not know it. See [Batch.End].
	Lag int64

	// Missed and Late are those of the [Batch].
	Missed int
	Late   time.Duration
}

// Transacted reports that a transaction has ended: of messages, of a position alone, or of
// [Background.Do]. There is one event for each, whatever its outcome and however many partitions shared it. A replay has [Replayed] instead, or
// both if it hangs.
type Transacted struct {
	Outcome    Outcome
	Reason     Reason  // why it did not commit
	Failure    Failure // how a handler failed, if one did
	Partitions int     // that shared it
	Messages   int
	Background bool          // it was [Background.Do]'s, which applies no messages
	Took       time.Duration // begin and commit included
	Handling   time.Duration // the part of Took that handlers took
}

// Outcome is the outcome of a transaction.
type Outcome uint8

// The outcomes.
const (
	OutcomeCommitted Outcome = iota
	OutcomeRefused           // by a fence: another claim, another position, or no fence
	OutcomeFailed            // rolled back: a handler, the database, or the time. With ReasonHandlerEndedTx it may be committed, without the fence
	OutcomeLost              // rolled back because one of its partitions was lost
	OutcomeInDoubt           // not known
	OutcomeDeferred          // rolled back: a handler has returned [RetryAfter], and one of the next stores the message
)

// String returns a word of a-z and underscores.
func (o Outcome) String() string {
	names := [...]string{"committed", "refused", "failed", "lost", "in_doubt", "deferred"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
	return names[o]
}

// Failure is the way in which a handler failed.
type Failure uint8

// The failures.
const (
	FailureNone      Failure = iota
	FailureError             // it returned an error
	FailurePermanent         // one that is [Permanent]
	FailurePanic
	FailureGoexit    // it ended its goroutine
	FailureTimeout   // [Options.BatchTimeout] was over
	FailureTransient // it met an [epoch.ErrTransient] or [epoch.ErrOwnTransaction], which is no message's fault
	FailureUnhealthy // it met an [epoch.ErrUnhealthy], which is no message's fault
)

// String returns a word of a-z and underscores.
func (f Failure) String() string {
	names := [...]string{"none", "error", "permanent", "panic", "goexit", "timeout", "transient", "unhealthy"}
	if int(f) >= len(names) {
		return fmt.Sprintf("Failure(%d)", int(f))
	}
	return names[f]
}

// Stale reports that a later claim owns the fence: a transaction was refused, as [Transacted] says, or the
// partition was idle and its fence was looked at.
type Stale struct {
	Ours epoch.Fence // as we claimed it
	Held epoch.Fence // as the sink found it
}

// WentBack reports that the sink has lost what it had committed, as in a failover or a restore, or
// that the group's position was published under a claim that the sink does not have: another process of
// the group may use another sink. The partition is claimed again and continues from the fence's position, so that messages whose
// effects are gone are applied again if the log still has them.
type WentBack struct {
	Was epoch.Fence // as we left it, or as the source has it
	Now epoch.Fence // in the sink. If the sink returned only the position (ErrMoved), Epoch and Claim are those of Was
}

// InDoubt reports that the outcome of a transaction is unknown, that the position was not the
// expected one, or that the sink could not begin a transaction. The partition is claimed again.
type InDoubt struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Err       error
}

// Halted reports that the partition has stopped at Next because of Err. It is tried again after
// RetryIn; if RetryIn is zero, this process does not try it again. A partition whose transactions
// keep failing for another reason than a message is reported too, once, when it has not advanced for a
// third of the term of its lease. It has not stopped: its transactions are still tried.
type Halted struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch // of the last claim; 0 before the first
	Next      epoch.Offset
	Reason    Reason
	Err       error
	RetryIn   time.Duration
}

// Resumed reports that a partition which was reported as [Halted] has nothing to apply and no
// error. If it has something to apply, [Claimed] or [Advanced] follow instead.
type Resumed struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
}

// Drained reports that the partition was given back at position Next, or ended there after a removal from the group.
type Drained struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
}

// Lost reports that the partition was taken away, or given up because a call hangs. No transaction of
// it begins any more. One whose COMMIT is on its way may still be committed, until the next claim.
type Lost struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
	Reason    Reason
	Cause     error
	InFlight  bool // a transaction was open. It was committed, rolled back or refused, or is in doubt until the next claim
}

// Overdue reports a hung call of a user's function: it did not return within [Options.HangTimeout]
// after its context had ended, and was abandoned. Nothing of its transaction is or will be
// committed. Partitions that shared the transaction continue. This partition is given up ([Lost]
// follows if it is still held), and this process does not claim it again until the call returns,
// which [Returned] reports.
//
// If the sink does not return (FunctionSink), the outcome is in doubt instead. If it was a transaction
// of messages, its partitions are claimed again. If it was one of background work, its partition is given up.
type Overdue struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	From, To  epoch.Offset  // of the partition's part of the transaction
	Timeout   time.Duration // of the transaction; see [Options.BatchTimeout]
	Function  Function
	Offset    epoch.Offset // of the message; of the first where the call has several; -1 where it has none
	Since     time.Time    // when the transaction began, or the context of background work ended
	Stack     string       // of the call's goroutine, innermost first; empty if it was not found
}

// Function is the user's function that hangs.
type Function uint8

// The functions.
const (
	FunctionHandler    Function = iota // that of [Each] or [Batches]
	FunctionOnFailure                  // that of [Handlers.OnFailure]
	FunctionReplay                     // the handler, for a dead letter that is replayed
	FunctionBackground                 // that of [Handlers.Background], or the apply of [Background.Do]
	FunctionSink                       // no function of the user's, but a method of the sink
)

// String returns a word of a-z and underscores.
func (f Function) String() string {
	names := [...]string{"handler", "on_failure", "replay", "background", "sink"}
	if int(f) >= len(names) {
		return fmt.Sprintf("Function(%d)", int(f))
	}
	return names[f]
}

// Returned reports that a call which was reported as [Overdue] has returned. Two calls have the
// same partition, epoch and function if two functions of [Handlers.Background] hang.
type Returned struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Function  Function
	Took      time.Duration // from Overdue.Since
}

// Retried reports that a transaction was rolled back. The partition is tried again from Offset
// after RetryIn.
type Retried struct {
	Partition epoch.Partition
	Offset    epoch.Offset
	Attempt   int // failed attempts that count towards MaxAttempts; 0 if all failures were transient or unhealthy
	Reason    Reason
	Err       error
	RetryIn   time.Duration
}

// Replayed reports that the handler got a dead letter again, as an operator had requested, or a message that it had
// deferred.
type Replayed struct {
	Partition  epoch.Partition
	Epoch      epoch.Epoch
	Offset     epoch.Offset // of its message
	DeadLetter int64        // its ID
	Err        error        // why it was rolled back; nil if it is applied
	Final      bool         // it is applied, or stays a dead letter; otherwise it is tried again
	Dead       bool         // it was deferred, and is a dead letter from now on
	Took       time.Duration
}

// Behind reports the lag of a partition that does not advance. The consumer asks the source once if
// nothing was applied for 5 s after a claim, and at most every 10 s while the lag is unknown or the
// partition is [Halted]. While a partition advances, [Advanced] has the lag.
type Behind struct {
	Partition epoch.Partition
	Next      epoch.Offset // of the fence as last read. Another process may have moved it
	Lag       int64        // messages from Next on; -1 if the source does not know
}

// Unrecorded reports that entries of the sink's audit log were dropped, because they could not be
// written (Err) or because too many were waiting (Err is nil). Messages are not affected.
type Unrecorded struct {
	Decisions int   // how many entries
	Err       error // nil if too many were waiting
}

// SnapshotsHeld reports the oldest snapshots that are held in the sink's database, with each sign of
// life, if the sink is an [operate.Snapshots].
type SnapshotsHeld struct {
	Oldest []operate.Snapshot // one of each kind of holder that there is
}

// Deferring reports about once a minute how many messages of its partitions wait for a [RetryAfter], as far as
// [operate.Records.Deferred] counts them.
type Deferring struct{ Messages int }

// Suspected reports that this process suspects another one to have died, and has it removed from the group, so
// that its partitions need not wait for its session timeout. See [Options.Patience].
type Suspected struct {
	Name, Host string        // of the process, as in [operate.Process]
	Member     string        // its id in the group
	Gone       bool          // its connection to the sink had ended. If not, it was silent for longer than its patience
	Silent     time.Duration // since its last sign
}

// SuspicionWrong reports that a process which was [Suspected] lives: it has signed again before its session
// timeout. It joins the group again, and nothing is doubled or lost.
type SuspicionWrong struct {
	Suspected Suspected
	Slept     time.Duration // between its signs
	Patience  time.Duration // how long the processes of the group wait for it from now on
}

// String says what happened, for operators.
func (e Suspected) String() string {
	why := "silent"
	if e.Gone {
		why = "its connection ended, and it was silent"
	}
	return fmt.Sprintf("%s on %s (member %s): %s for %v", e.Name, e.Host, e.Member, why, e.Silent.Round(time.Millisecond))
}

// String says what happened, for operators.
func (e SuspicionWrong) String() string {
	return fmt.Sprintf("%s on %s lives, after %v without a sign; its patience is %v now", e.Suspected.Name, e.Suspected.Host, e.Slept.Round(time.Millisecond), e.Patience)
}

func suspected(s failover.Suspicion) Suspected {
	return Suspected{Name: s.Name, Host: s.Host, Member: s.Member, Gone: s.Why == failover.Gone, Silent: s.Silent}
}

func (Joined) event()         {}
func (Left) event()           {}
func (Granted) event()        {}
func (NotClaimed) event()     {}
func (Claimed) event()        {}
func (Advanced) event()       {}
func (Transacted) event()     {}
func (Stale) event()          {}
func (WentBack) event()       {}
func (InDoubt) event()        {}
func (Halted) event()         {}
func (Resumed) event()        {}
func (Drained) event()        {}
func (Lost) event()           {}
func (Overdue) event()        {}
func (Returned) event()       {}
func (Retried) event()        {}
func (Replayed) event()       {}
func (Behind) event()         {}
func (Unrecorded) event()     {}
func (SnapshotsHeld) event()  {}
func (Deferring) event()      {}
func (Suspected) event()      {}
func (SuspicionWrong) event() {}

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

// transacted returns the event of a transaction of messages, for which [RetryAfter] is no failure.
func (p policy) transacted(tried []trial, r result) Transacted {
	e := transacted(tried, r)
	if _, later := deferral(r.handler); later && p.defers && e.Failure == FailureError && tried[r.batch].failed == nil {
		e.Outcome, e.Reason, e.Failure = OutcomeDeferred, ReasonNone, FailureNone
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
