package operate

import (
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Decision is an entry of a sink's audit log: a claim, a refusal, a halt, or an operator
// action, with its reason. Commits have no entries.
type Decision struct {
	// ID rises in the order of the log, and At is the time of the sink's database. A
	// sink sets both, and Role, which is the database's name for who was connected.
	ID   int64
	At   time.Time
	Role string

	Kind      DecisionKind
	Partition epoch.Partition

	// Epoch, Claim and Owner are of the claim that the decision is about.
	Epoch epoch.Epoch
	Claim epoch.ClaimID
	Owner string

	// From and To are the positions before and after. They are equal if it did not move, and
	// -1 if unknown. From is -1 for the first claim of a fence. For a hang they are the range
	// of its messages: see [DecidedHang].
	From, To epoch.Offset

	// Reason is a text for operators. By is the operator, or empty.
	Reason, By string

	// TraceID is the trace of the decision in hexadecimal digits, or empty. See [WithTraceID].
	TraceID string
}

// DecisionKind is the kind of a decision.
type DecisionKind string

const (
	// DecidedClaim: a claim was swapped in, at position To. It is written in its
	// transaction.
	DecidedClaim DecisionKind = "claim"

	// DecidedReplayRequest: an operator has asked for the dead letter at offset From to
	// be given to the handler again.
	DecidedReplayRequest DecisionKind = "replay-request"

	// DecidedReplayWithdraw: an operator has taken that back.
	DecidedReplayWithdraw DecisionKind = "replay-withdraw"

	// DecidedDiscard: an operator has deleted the dead letter at offset From.
	DecidedDiscard DecisionKind = "discard"

	// DecidedReplay: the dead letter at offset From was applied.
	DecidedReplay DecisionKind = "replay"

	// DecidedReplayFailure: it could not be, and stays one.
	DecidedReplayFailure DecisionKind = "replay-failure"

	// DecidedStale, and those that follow, are what a consumer has met with, written
	// afterwards, as well as it goes: a transaction was refused because the fence
	// belongs to a later claim.
	DecidedStale DecisionKind = "stale"

	// DecidedHalt: the partition has halted.
	DecidedHalt DecisionKind = "halt"

	// DecidedRecovery: one that had halted has nothing to apply, and is as it should be. One
	// that has continues, which its position shows.
	DecidedRecovery DecisionKind = "recovery"

	// DecidedLoss: the partition was lost.
	DecidedLoss DecisionKind = "loss"

	// DecidedInDoubt: what became of a transaction that was in doubt, by the position
	// of the next claim.
	DecidedInDoubt DecisionKind = "in-doubt"

	// DecidedHang: a call did not return after its context had ended, and the partition was
	// given up. The handler hangs on one message with an offset in [From, To). Both are -1
	// if the call was not for a message at the position.
	DecidedHang DecisionKind = "hang"

	// DecidedOnFailureHang: the same, and the call was OnFailure for the message at From.
	DecidedOnFailureHang DecisionKind = "on-failure-hang"
)

// Operator actions on a fence. Each is recorded in its own transaction.
const (
	DecidedRewind = DecisionKind(ActRewind)
	DecidedSkip   = DecisionKind(ActSkip)
	DecidedPause  = DecisionKind(ActPause)
	DecidedResume = DecisionKind(ActResume)
	DecidedEvict  = DecisionKind(ActEvict)
	DecidedRebase = DecisionKind(ActRebase)
)

// Swaps reports whether the decision replaced the claim in the fence.
func (k DecisionKind) Swaps() bool {
	switch k {
	case DecidedClaim, DecidedRewind, DecidedSkip, DecidedPause, DecidedResume, DecidedEvict, DecidedRebase:
		return true
	default:
		return false
	}
}

// Recorded reports whether consumers record this kind, through [Operable]. The others are
// recorded by the transaction that decides them.
func (k DecisionKind) Recorded() bool {
	switch k {
	case DecidedStale, DecidedHalt, DecidedRecovery, DecidedLoss, DecidedInDoubt, DecidedHang, DecidedOnFailureHang:
		return true
	default:
		return false
	}
}

// Met returns d as a sink stores it for a consumer: without an operator in By or Owner.
func (d Decision) Met() Decision {
	d.By = ""
	if strings.HasPrefix(d.Owner, epoch.OperatorPrefix) {
		d.Owner = ""
	}
	return d
}

// IsHang reports whether the decision is about a call that hangs.
func (k DecisionKind) IsHang() bool { return k == DecidedHang || k == DecidedOnFailureHang }

// ForgivesHangs reports whether earlier hangs no longer count, because an operator has let the
// partition continue.
func (k DecisionKind) ForgivesHangs() bool {
	switch k {
	case DecidedRewind, DecidedSkip, DecidedResume, DecidedRebase:
		return true
	default:
		return false
	}
}
