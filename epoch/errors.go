package epoch

import (
	"errors"
	"fmt"
)

// This file has the refusals and errors that a sink returns. Package consumer decides in verdict.go
// what each means for a partition.

// Errors of a [Sink]. The error types below match them with [errors.Is].
var (
	// ErrStale is returned when a later claim owns the fence, another process's or an operator's.
	// Do not retry the transaction. Claim again only if the source still confirms the lease.
	ErrStale = errors.New("stale claim")

	// ErrMoved is returned when the fence has our claim and its position is not the one that the
	// advance started from. Claim again and continue from the fence's position.
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

	// ErrInDoubt is returned when the sink does not know whether the transaction was committed, or
	// when the sink lost its connection. Claim again: the fence's position shows the outcome.
	ErrInDoubt = errors.New("outcome in doubt")

	// ErrTransient is returned when the database refused for a reason that passes, such as a
	// deadlock, a serialization failure, a lock that was not granted in time, or a lack of
	// locks or memory. Nothing is committed, and no message is at fault. Try again with fewer
	// messages. A handler may return it too.
	ErrTransient = errors.New("transient failure")

	// ErrTooLarge is returned when the transaction is larger than the store allows. Nothing is
	// committed. The consumer tries again with fewer messages. A message that does not fit alone
	// fails.
	ErrTooLarge = errors.New("transaction too large")

	// ErrLowEpoch is returned when a store has seen an epoch of the partition that is higher than
	// the claim's.
	ErrLowEpoch = errors.New("epoch is below one that was seen")

	// ErrUnhealthy is returned when the database would refuse every message: a table, column or
	// privilege is missing, the server is read-only, the disk is full. No message is at fault.
	// Nothing is committed, unless the error also matches [ErrInDoubt]. The consumer halts the
	// partition and tries again until the database is fixed. A handler may return it too, for
	// anything that it cannot work without.
	ErrUnhealthy = errors.New("unhealthy database")

	// ErrTxEndedByHandler is returned when the handler has ended the fenced transaction in a way
	// that the sink could not prevent. The handler's writes may be committed without the fence. To
	// fix it, change the handler.
	ErrTxEndedByHandler = errors.New("handler ended the fenced transaction")

	// ErrTxControl is returned to a handler that sends a statement that begins or ends
	// transactions, such as COMMIT or ROLLBACK. The statement was not sent to the database. The
	// sink commits when the handler returns nil, and rolls back when it returns an error.
	ErrTxControl = errors.New("the sink ends the transaction, not the handler")

	// ErrOwnTransaction is returned to a handler that changes its transaction or session,
	// by SET LOCAL or CREATE TEMP TABLE for instance, in a transaction that it shares with
	// other calls. The statement was not sent. The consumer rolls the transaction back and
	// calls the handler again in a transaction of its own, where the statement is allowed.
	ErrOwnTransaction = errors.New("the statement needs a transaction of its own")
)

// CallError is returned by [Sink.Commit] when a call did something that the transaction does not
// allow, whatever the call itself returned.
type CallError struct {
	Call int // the index of the call
	Err  error
}

func (e *CallError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *CallError) Unwrap() error { return e.Err }

// StaleError is returned when the fence carries another claim than Ours.
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

// MovedError is returned when an advance does not start at the fence's position.
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

// LowEpochError is returned when a store has seen a higher epoch than the claim's: the fence was
// restored from a backup and the rest of the store was not, or another process has claimed the
// partition since. The consumer claims again, above Seen, if the source still confirms the lease.
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

// MissingError is returned when the sink has no fence for the partition.
type MissingError struct {
	Partition Partition
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: %v in this sink", e.Partition, ErrMissing)
}

// Unwrap returns [ErrMissing].
func (e *MissingError) Unwrap() error { return ErrMissing }

// LogChangedError is returned when the fence counts the offsets of another log than the source's.
type LogChangedError struct {
	Partition Partition
	Fence     string // the log in the fence
	Source    string // the log that the source reads
	Next      Offset // the fence's position in its log
}

func (e *LogChangedError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is at offset %d of log %q, the source now reads log %q; "+
		"an operator has to decide where to continue, or use a new group",
		e.Partition, ErrLogChanged, e.Next, e.Fence, e.Source)
}

// Unwrap returns [ErrLogChanged].
func (e *LogChangedError) Unwrap() error { return ErrLogChanged }

// ForeignLeaseError is returned when the fence was claimed under a lease of another issuer than the
// source's: two deployments use one group name on one sink.
type ForeignLeaseError struct {
	Partition Partition
	Fence     string // the issuer in the fence
	Source    string // the issuer of the source's leases
	Owner     string // the fence's owner
}

func (e *ForeignLeaseError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is leased from %q (owner %q), this process leases from %q; "+
		"give one of the two deployments another group, or, if the group has moved for good to where this process leases, have an operator accept that",
		e.Partition, ErrForeignLease, e.Fence, e.Owner, e.Source)
}

// Unwrap returns [ErrForeignLease].
func (e *ForeignLeaseError) Unwrap() error { return ErrForeignLease }
