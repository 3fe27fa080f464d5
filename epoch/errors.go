package epoch

import (
	"errors"
	"fmt"
)

// Errors of a [Sink]. The error types below match them with [errors.Is].
var (
	// ErrStale is returned when a later claim owns the fence. Do not retry: another process
	// owns the partition.
	ErrStale = errors.New("stale claim")

	// ErrMoved is returned when the fence has our claim but another position than the advance
	// started from. Claim again and continue from the fence's position.
	ErrMoved = errors.New("position moved")

	// ErrMissing is returned when the sink has no fence for the partition.
	ErrMissing = errors.New("no fence")

	// ErrLogChanged is returned when the fence counts offsets of another log.
	ErrLogChanged = errors.New("log changed")

	// ErrForeignLease is returned when the fence was claimed under a lease of another issuer.
	ErrForeignLease = errors.New("foreign lease source")

	// ErrElsewhere is returned when the fence is in another database of the sink. An operator
	// has to decide which database is right.
	ErrElsewhere = errors.New("kept in another database")

	// ErrNoLease is returned for a lease whose generation is not positive.
	ErrNoLease = errors.New("no lease")

	// ErrInDoubt is returned when the sink does not know whether the transaction was
	// committed, or lost its connection. Claim again: the position shows it.
	ErrInDoubt = errors.New("outcome in doubt")

	// ErrTransient is returned when the database refused for a reason that passes, such as a
	// deadlock, a serialization failure, a lock that was not granted in time, or a lack of
	// locks or memory. Nothing is committed, and no message is at fault. Try again with fewer
	// messages. A handler may return it too.
	ErrTransient = errors.New("transient failure")

	// ErrTooLarge is returned when the transaction is larger than the store allows. Nothing is
	// committed. The consumer tries again with fewer messages; a message that does not fit alone
	// has failed.
	ErrTooLarge = errors.New("transaction too large")

	// ErrLowEpoch is returned when a store has seen a higher epoch of the partition than the
	// claim's.
	ErrLowEpoch = errors.New("epoch is below one that was seen")

	// ErrUnhealthy is returned when the database would refuse every message: a table, column
	// or privilege is missing, the server is read-only, the disk is full. No message is at
	// fault. Nothing is committed, unless the error is [ErrInDoubt] too. The partition halts
	// and is tried again until the database is fixed. A handler may return it too, for
	// anything it cannot work without.
	ErrUnhealthy = errors.New("unhealthy database")

	// ErrTxEndedByHandler is returned when the handler has left the fenced transaction
	// in a way that the sink could not prevent. What it wrote may be committed without
	// the fence. Only a change to the handler helps.
	ErrTxEndedByHandler = errors.New("handler ended the fenced transaction")

	// ErrTxControl is returned to a handler that sends a statement which begins or ends
	// transactions, such as COMMIT or ROLLBACK. The statement was not sent to the
	// database. The sink commits when the handler returns nil, and rolls back when it
	// returns an error.
	ErrTxControl = errors.New("the sink ends the transaction, not the handler")

	// ErrOwnTransaction is returned to a handler that changes its transaction or session,
	// by SET LOCAL or CREATE TEMP TABLE for instance, in a transaction that it shares with
	// other calls. The statement was not sent. The consumer rolls the transaction back and
	// calls the handler again in a transaction of its own, where the statement is allowed.
	ErrOwnTransaction = errors.New("the statement needs a transaction of its own")
)

// CallError is the error of [Sink] Commit for a call that did what the transaction does
// not allow, whatever the call itself returned.
type CallError struct {
	Call int // the index of the call
	Err  error
}

func (e *CallError) Error() string { return e.Err.Error() }

// Unwrap returns what the call did.
func (e *CallError) Unwrap() error { return e.Err }

// StaleError is the refusal of a claim that is no longer, or never was, the one
// in the fence.
type StaleError struct {
	Partition Partition
	Ours      ClaimID
	Held      Fence // as the sink found it
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s: %v: fence is held by claim %s (epoch %d, owner %q), not by %s",
		e.Partition, ErrStale, e.Held.Claim, e.Held.Epoch, e.Held.Owner, e.Ours)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// MovedError is the refusal of an advance that does not start where the fence
// is.
type MovedError struct {
	Partition Partition
	From      Offset // where the advance started
	Next      Offset // where the fence is
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is at offset %d, not %d", e.Partition, ErrMoved, e.Next, e.From)
}

// Unwrap returns [ErrMoved].
func (e *MovedError) Unwrap() error { return ErrMoved }

// LowEpochError is the refusal of a commit whose claim is current, but whose epoch is below one
// that the store has seen: its fence was restored from a backup and the rest was not. The
// consumer claims again, above Seen.
type LowEpochError struct {
	Partition Partition
	Epoch     Epoch // the claim's
	Seen      Epoch
}

func (e *LowEpochError) Error() string {
	return fmt.Sprintf("%s: %v: %d after %d", e.Partition, ErrLowEpoch, e.Epoch, e.Seen)
}

// Unwrap returns [ErrLowEpoch].
func (e *LowEpochError) Unwrap() error { return ErrLowEpoch }

// MissingError says that a sink has no fence of a partition.
type MissingError struct {
	Partition Partition
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: %v in this sink", e.Partition, ErrMissing)
}

// Unwrap returns [ErrMissing].
func (e *MissingError) Unwrap() error { return ErrMissing }

// LogChangedError says that a fence counts the offsets of another log than the
// one at hand.
type LogChangedError struct {
	Partition Partition
	Fence     string // the log in the fence
	Source    string // the log at hand
	Next      Offset // the fence's position in its log
}

func (e *LogChangedError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is at offset %d of log %q, the source now reads log %q; "+
		"decide where to continue and say it with epochfence rebase --to, or use a new group",
		e.Partition, ErrLogChanged, e.Next, e.Fence, e.Source)
}

// Unwrap returns [ErrLogChanged].
func (e *LogChangedError) Unwrap() error { return ErrLogChanged }

// ForeignLeaseError says that a fence is claimed from another issuer of leases
// than the one at hand: two deployments use one group name on one sink.
type ForeignLeaseError struct {
	Partition Partition
	Fence     string // the issuer in the fence
	Source    string // the issuer at hand
	Owner     string // the fence's owner
}

func (e *ForeignLeaseError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is leased from %q (owner %q), this process leases from %q; "+
		"give one of the two deployments another group, or, if the leases are to come from there from now on, run epochfence rebase",
		e.Partition, ErrForeignLease, e.Fence, e.Owner, e.Source)
}

// Unwrap returns [ErrForeignLease].
func (e *ForeignLeaseError) Unwrap() error { return ErrForeignLease }
