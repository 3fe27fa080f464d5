package consumer

import (
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Event is one of [Joined], [Left], [Transacted] and [Unrecorded], which are about the
// process, and [Granted], [NotClaimed], [Claimed], [Advanced], [Stale], [InDoubt], [Halted],
// [Resumed], [Drained], [Lost], [Retried], [Overdue], [Returned], [WentBack], [Replayed] and [Behind], which are about
// a partition. More may be added. [Status] makes of them what is so now, and package
// ops/stats what has happened since the process started.
//
// A tenure begins with Granted and ends with Drained or Lost. A Next of -1 means that
// this process has not claimed the partition yet.
type Event interface{ event() }

// Joined: this process is a member of the group. It may be granted no partition, where
// others have them all.
type Joined struct{}

// Left: this process is not a member of the group, or not as far as it knows. It
// joins again by itself as long as [Run] runs.
type Left struct {
	Cause error // nil when Run has ended in good order
}

// Granted: the source has granted this process a partition. It is claimed next.
type Granted struct {
	Partition epoch.Partition
}

// NotClaimed: an attempt to claim a partition has failed. It is tried again as long as
// the partition is granted. One that is going to be given up as lost is not reported so.
type NotClaimed struct {
	Partition epoch.Partition
	Reason    Reason // ReasonStale: somebody else's claim came first
	Err       error
	Took      time.Duration // this attempt
}

// Claimed: this process has claimed a partition and starts at Fence.Next.
type Claimed struct {
	Fence    epoch.Fence
	Seen     epoch.Fence   // the fence it replaced
	Halted   bool          // it was reported as Halted because it does not move, and it has yet to do so
	Took     time.Duration // this attempt, from the read of the fence
	Attempts int           // this one and those that failed before it
	Waited   time.Duration // over all of them: since the grant, or since the claim before ended
}

// Advanced: a transaction that moved this partition's position has committed.
type Advanced struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	From, To  epoch.Offset
	Messages  int           // zero where the log had none in between
	Failed    int           // of Messages, those that OnFailure took
	Bytes     int           // of keys, values and headers
	Took      time.Duration // the whole transaction, which other partitions may have shared

	// Oldest and Newest are the times of the first and of the last of Messages; zero
	// without messages, or where the source gives them none.
	Oldest, Newest time.Time

	// Lag is how many messages there are to apply behind To, as far as the source knew
	// when it read these; -1 if it does not say. See [Batch.End].
	Lag int64
}

// Transacted: a transaction has come to an end. There is one for each, whatever
// came of it and however many partitions shared it.
type Transacted struct {
	Outcome    Outcome
	Reason     Reason  // why it did not commit
	Failure    Failure // how a handler failed, if that was it
	Partitions int     // that shared it
	Messages   int
	Background bool          // it was [Background.Do]'s, which applies no messages
	Took       time.Duration // begin and commit included
	Handling   time.Duration // of it, in handlers
}

// Outcome is what became of a transaction.
type Outcome uint8

// The outcomes.
const (
	OutcomeCommitted Outcome = iota
	OutcomeRefused           // by a fence: another claim, another position, or no fence
	OutcomeFailed            // rolled back: a handler, the database, or the time
	OutcomeLost              // rolled back as one of its partitions was lost
	OutcomeInDoubt           // not known
)

// String is a word of a-z and underscores.
func (o Outcome) String() string {
	names := [...]string{"committed", "refused", "failed", "lost", "in_doubt"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
	return names[o]
}

// Failure is how a handler failed.
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

// String is a word of a-z and underscores.
func (f Failure) String() string {
	names := [...]string{"none", "error", "permanent", "panic", "goexit", "timeout", "transient", "unhealthy"}
	if int(f) >= len(names) {
		return fmt.Sprintf("Failure(%d)", int(f))
	}
	return names[f]
}

// Stale: a transaction was refused because the fence belongs to a later claim.
// Its messages are that claim's now.
type Stale struct {
	Ours epoch.Fence // as we claimed it
	Held epoch.Fence // as the sink found it
}

// WentBack: the sink has forgotten what it had committed, as a failover or a restore
// from a backup makes it. The partition is claimed again and continues from where
// the fence then is, so that the effects that are gone come back, as long as the log has
// their messages.
type WentBack struct {
	Was epoch.Fence // as we left it
	Now epoch.Fence // as the sink has it; of a refusal that does not show the claim, with ours
}

// InDoubt: the outcome of a transaction is unknown, or the position was not
// where it should be. The partition is claimed again.
type InDoubt struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Err       error
}

// Halted: the partition has stopped at Next because of Err and is tried again
// after RetryIn, or not by this process if RetryIn is zero. A partition that goes
// on being tried and does not move is reported so as well, once, within the term of
// its lease.
type Halted struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch // of the last claim; 0 before the first
	Next      epoch.Offset
	Reason    Reason
	Err       error
	RetryIn   time.Duration
}

// Resumed: a partition that was reported as Halted is well again, and has nothing to
// apply. One that has is reported as Claimed or Advanced.
type Resumed struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
}

// Drained: the partition was given back with its position at Next.
type Drained struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
}

// Lost: the partition was taken away, and nothing more can commit.
type Lost struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Next      epoch.Offset
	Reason    Reason
	Cause     error
	InFlight  bool // a transaction was under way, which has been rolled back, refused, or just committed
}

// Overdue: a call of one of the user's functions hangs. It did not return within
// [Options.HangTimeout] after its context had ended, and was abandoned: nothing of its
// transaction is committed, now or later. The partitions that shared the transaction continue,
// and this one is given up ([Lost] follows, if it is held still). It is not claimed again by
// this process before the call has returned, which [Returned] tells.
//
// Where it is the sink that does not return (FunctionSink), the partitions of the transaction
// are claimed again.
type Overdue struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	From, To  epoch.Offset // of the partition's part of the transaction
	Timeout   time.Duration
	Function  Function
	Offset    epoch.Offset // of the message; of the first where the call has several; -1 where it has none
	Since     time.Time    // when the transaction began, or the context of background work ended
	Stack     string       // of the call's goroutine, innermost first; empty if it was not found
}

// Returned: a call that was reported as [Overdue] has returned. There is one Overdue of a
// partition, an epoch and a function at a time.
type Returned struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch
	Function  Function
	Took      time.Duration // from Overdue.Since
}

// Retried: the handler failed on a message, everything was rolled back, and it
// is tried again after RetryIn.
type Retried struct {
	Partition epoch.Partition
	Offset    epoch.Offset
	Attempt   int // how many have failed, without transient failures; so it may be 0
	Reason    Reason
	Err       error
	RetryIn   time.Duration
}

// Replayed: a dead letter was given to the handler again, as an operator had asked for.
type Replayed struct {
	Partition  epoch.Partition
	Epoch      epoch.Epoch
	Offset     epoch.Offset // of its message
	DeadLetter int64        // its ID
	Err        error        // why it was rolled back; nil if it is applied
	Final      bool         // it is applied, or stays a dead letter; otherwise it is tried again
	Took       time.Duration
}

// Behind: the source was asked for the lag of a partition. It is asked while the partition is
// reported as [Halted], every 10 s at most, and once after a claim under which nothing was
// applied for 5 s. While a partition advances, [Advanced] says the lag.
type Behind struct {
	Partition epoch.Partition
	Next      epoch.Offset // of the fence as it was read last, which may be another process's
	Lag       int64        // messages from Next on; -1 if the source does not know
}

// Unrecorded: entries of the sink's audit log could not be written, and are
// missing from it.
type Unrecorded struct {
	Decisions int
	Err       error // nil where there were too many at a time
}

func (Joined) event()     {}
func (Left) event()       {}
func (Granted) event()    {}
func (NotClaimed) event() {}
func (Claimed) event()    {}
func (Advanced) event()   {}
func (Transacted) event() {}
func (Stale) event()      {}
func (WentBack) event()   {}
func (InDoubt) event()    {}
func (Halted) event()     {}
func (Resumed) event()    {}
func (Drained) event()    {}
func (Lost) event()       {}
func (Overdue) event()    {}
func (Returned) event()   {}
func (Retried) event()    {}
func (Replayed) event()   {}
func (Behind) event()     {}
func (Unrecorded) event() {}
