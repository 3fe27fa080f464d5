package epoch

import (
	"errors"
	"fmt"
)

// The refusals. Errors of the types below match them with [errors.Is].
var (
	// ErrStale: the fence belongs to a later claim. It is a correctness
	// signal, never retried as an error.
	ErrStale = errors.New("stale claim")

	// ErrMoved: the fence carries our claim but is at another offset than the
	// advance started from. Claim again and continue from there.
	ErrMoved = errors.New("position moved")

	// ErrMissing: the sink has no fence of that partition.
	ErrMissing = errors.New("no fence")

	// ErrLogChanged: the fence counts the offsets of another log.
	ErrLogChanged = errors.New("log changed")

	// ErrForeignLease: the fence is claimed from another issuer of leases.
	ErrForeignLease = errors.New("foreign lease source")

	// ErrElsewhere: another database of the sink than the one asked keeps the
	// partition. Only an operator can say which it is to be.
	ErrElsewhere = errors.New("kept in another database")

	// ErrNotRequested: a dead letter is not there as its replay was requested: that was
	// withdrawn, or it was discarded or replayed meanwhile.
	ErrNotRequested = errors.New("the replay is not requested any more")

	// ErrNoLease: a lease whose generation is not positive grants nothing.
	ErrNoLease = errors.New("no lease")

	// ErrInDoubt: the sink cannot tell whether the transaction was committed,
	// or has lost its connection. Claim again: the position then tells.
	ErrInDoubt = errors.New("outcome in doubt")

	// ErrTransient: the database refused for a reason that passes and that the
	// size or the company of a transaction may have caused: a deadlock, a
	// serialization failure, a lock not granted in time, no locks or memory
	// left. Nothing is committed and no message is at fault; try again, with
	// less. A handler may return it too.
	ErrTransient = errors.New("transient failure")

	// ErrUnhealthy: the database refused for a reason that no message has: a
	// table or column is missing, or a right; the server is read-only; the disk
	// is full or broken. Nothing is committed, unless it is [ErrInDoubt] too,
	// and no message is at fault: the partition halts with the reason and is
	// tried again from time to time, until somebody has fixed the database. A
	// handler may return it too, for whatever it cannot work without.
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
