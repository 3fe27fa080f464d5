package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the events for Options.Observe. It decides nothing.

// Event is one of [Joined] and [Left], which are about the member, of [Waiting], [Acquired],
// [NotAcquired], [Renewed], [Released] and [Lost], which are about a lease, and of [NotClaimed] and
// [Worked], which are about a [Claimed]. More may be added. Package operate/stats counts them.
//
// A lease begins with Acquired and ends with one Released or Lost.
type Event interface{ event() }

// Joined reports that this process is a member of the group.
type Joined struct{}

// Left reports that this process is not a member of the group, as far as it knows: the registration is
// over and no renewal was acknowledged for half of TTL, or the member was closed.
type Left struct {
	Cause error // [ErrClosed] after [Member.Close]
}

// Waiting reports that a call of [Member.Acquire] did not get the lease at once and waits for it.
// Acquired or NotAcquired follows, with Queued.
type Waiting struct {
	Resource Resource
}

// Acquired reports that this process has taken a lease.
type Acquired struct {
	Resource   Resource
	Generation int64
	Waited     time.Duration // since the call; for a lease of [Member.Run], the duration of the request
	Queued     bool          // Waiting was reported
}

// NotAcquired reports that a call of [Member.Acquire] or [Member.TryAcquire] did not get the lease.
type NotAcquired struct {
	Resource Resource
	Waited   time.Duration
	Queued   bool  // Waiting was reported
	Err      error // [ErrHeld], [ErrUnanswered], [ErrClosed], or that of the context
}

// Renewed reports that the store has acknowledged a renewal of the registration, which extends each
// lease of this process. There is one event for each lease, about every third of TTL.
type Renewed struct {
	Resource Resource
}

// Released reports that the holder has given the lease back before it was lost.
type Released struct {
	Resource Resource
	Held     time.Duration // since Acquired
	Renewals int           // events Renewed of this lease
}

// Lost reports that the lease was lost before its holder gave it back. It may be reported after
// [Member.Close] has returned if Close is the reason.
type Lost struct {
	Resource Resource
	Held     time.Duration // since Acquired
	Renewals int           // events Renewed of this lease
	Reason   Reason
	Cause    error // matches [ErrLost]

	// Working reports whether the holder was at work: a [Claimed.Do], or a transaction of
	// [Claimed.Background], was under way or, for a lease of
	// [Member.Acquire] or [Member.TryAcquire] that was not claimed, the holder had not released it.
	Working bool
}

// NotClaimed reports that an attempt to claim the resource in a sink failed. [Claim], [Claimed.Do] and
// [Claimed.Background] try again after most errors.
type NotClaimed struct {
	Resource Resource
	Refusal  Refusal // by the fence, if it was one
	Err      error
}

// Worked reports that a transaction of [Claimed.Do] has ended, whatever its outcome. Do may try again,
// which is another event.
type Worked struct {
	Resource Resource
	Epoch    epoch.Epoch   // of the claim
	Took     time.Duration // begin and commit included
	TTL      time.Duration // of the member, to compare Took with
	Outcome  Outcome
	Refusal  Refusal // with OutcomeRefused
	Err      error   // nil after OutcomeCommitted, and if the work has panicked

	// Gap is the epoch of the work's claim minus the epoch of the claim that it replaced, or 0 if it
	// replaced none. After a refusal, it is the epoch that refused the work minus that of the work's
	// claim.
	Gap int64
}

func (Joined) event()      {}
func (Left) event()        {}
func (Waiting) event()     {}
func (Acquired) event()    {}
func (NotAcquired) event() {}
func (Renewed) event()     {}
func (Released) event()    {}
func (Lost) event()        {}
func (NotClaimed) event()  {}
func (Worked) event()      {}

// Outcome is the outcome of a transaction.
type Outcome uint8

// The outcomes.
const (
	OutcomeCommitted Outcome = iota
	OutcomeRefused           // by the fence, or by another system that has seen a higher epoch
	OutcomeFailed            // rolled back: the work or the database
	OutcomeLost              // rolled back because the lease was lost
	OutcomeInDoubt           // the answer to the commit was lost; Do then finds out
	OutcomeUnfenced          // the work ended the transaction by itself: it may be committed without the fence
)

// String returns a word of a-z and underscores.
func (o Outcome) String() string {
	return word("Outcome", int(o), "committed", "refused", "failed", "lost", "in_doubt", "unfenced")
}

// outcomeOf classifies the error of a transaction under a lease.
func outcomeOf(err error, lost bool, refusal Refusal) Outcome {
	switch {
	case err == nil:
		return OutcomeCommitted
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return OutcomeUnfenced
	case refusal != RefusalNone:
		return OutcomeRefused // also after the lease was lost: that is what the fence is for
	case errors.Is(err, epoch.ErrInDoubt):
		return OutcomeInDoubt
	case lost:
		return OutcomeLost
	}
	return OutcomeFailed
}

// Refusal is the reason for which a claim or a transaction was refused.
type Refusal uint8

// The reasons.
const (
	RefusalNone         Refusal = iota
	RefusalStale                // another claim owns the fence
	RefusalMoved                // a transaction under the same claim came first
	RefusalLowEpoch             // another system has seen a higher epoch
	RefusalMissing              // there is no fence
	RefusalLogChanged           // the fence is that of a consumer's partition
	RefusalForeignLease         // the same
)

// String returns a word of a-z and underscores.
func (r Refusal) String() string {
	return word("Refusal", int(r), "none", "stale", "moved", "low_epoch", "missing_fence", "log_changed", "foreign_lease")
}

// refusalOf returns the reason for which the fence of p, or another system, has refused something, and
// the epoch that did if it is known. Errors about other partitions are those of work.
func refusalOf(err error, p epoch.Partition) (Refusal, epoch.Epoch) {
	if e, ok := errors.AsType[*epoch.StaleError](err); ok && e.Partition == p {
		return RefusalStale, e.Held.Epoch
	}
	if e, ok := errors.AsType[*epoch.LowEpochError](err); ok && e.Partition == p {
		return RefusalLowEpoch, e.Seen
	}
	if e, ok := errors.AsType[*epoch.MovedError](err); ok && e.Partition == p {
		return RefusalMoved, 0
	}
	if e, ok := errors.AsType[*epoch.MissingError](err); ok && e.Partition == p {
		return RefusalMissing, 0
	}
	if e, ok := errors.AsType[*epoch.LogChangedError](err); ok && e.Partition == p {
		return RefusalLogChanged, 0
	}
	if e, ok := errors.AsType[*epoch.ForeignLeaseError](err); ok && e.Partition == p {
		return RefusalForeignLease, 0
	}
	return RefusalNone, 0
}

// Reason is the reason for which a lease was lost.
type Reason uint8

// The reasons.
const (
	ReasonExpired      Reason = iota // [ErrExpired]
	ReasonTaken                      // the lease's item is another's, or gone
	ReasonUnregistered               // another member has ended the registration, or it is gone
	ReasonStalled                    // [ErrStalled]
	ReasonDrainOverrun               // [ErrDrainOverrun]
	ReasonClosed                     // [Member.Close]
)

// String returns a word of a-z and underscores.
func (r Reason) String() string {
	return word("Reason", int(r), "lease_expired", "lease_taken", "unregistered", "stalled", "drain_overrun", "closed")
}

func reasonOf(cause error) Reason {
	switch {
	case errors.Is(cause, ErrExpired):
		return ReasonExpired
	case errors.Is(cause, errUnregistered):
		return ReasonUnregistered
	case errors.Is(cause, ErrStalled):
		return ReasonStalled
	case errors.Is(cause, ErrDrainOverrun):
		return ReasonDrainOverrun
	case errors.Is(cause, errTaken):
		return ReasonTaken
	}
	return ReasonClosed
}

func word(kind string, value int, words ...string) string {
	if value >= len(words) {
		return fmt.Sprintf("%s(%d)", kind, value)
	}
	return words[value]
}
