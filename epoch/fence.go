package epoch

import (
	"fmt"
	"math"
	"strings"
)

// This file decides when a claim replaces another one, which epoch it gets, and when an advance is
// refused (R1, R3). SQL sinks repeat these decisions in SQL, and sinks/sinktest compares the two.

// Fence is a sink's record of one partition. Its methods define the protocol: every sink must
// behave like them.
type Fence struct {
	Origin

	// Generation and Owner come from the lease of the current claim. They are for operators.
	// Nothing compares them afterwards; the claim's Epoch is at least its Generation.
	Generation int64
	Owner      string

	// Epoch and Claim are zero in a fence that was seeded and not yet claimed.
	Epoch Epoch
	Claim ClaimID

	// Next is the offset of the next message to apply.
	Next Offset

	// Mark is the mark of Next. It comes from the last message applied, or from the place in the
	// log where the partition began.
	Mark Mark

	// Applied reports whether messages before Next were applied, by an advance or by consumers that
	// the group had before its fence. While Applied is false and retention has deleted messages
	// from Next on, the partition begins where its log begins.
	Applied bool

	// SetUnder is the epoch of the last operator action that set Next, or zero. If the position
	// falls and SetUnder has risen, an operator set the position back. An action that skips
	// messages does not change SetUnder, because no message is applied again.
	SetUnder Epoch

	// Pause says whether the fence accepts claims.
	Pause PauseState
}

// Check returns a [*LogChangedError] or a [*ForeignLeaseError] if the fence is about another
// log or another issuer of leases than o. An operator has to resolve both.
func (f Fence) Check(o Origin) error {
	if f.Log != o.Log {
		return &LogChangedError{Partition: f.Partition, Fence: f.Log, Source: o.Log, Next: f.Next}
	}
	if f.Source != o.Source {
		return &ForeignLeaseError{Partition: f.Partition, Fence: f.Source, Source: o.Source, Owner: f.Owner}
	}
	return nil
}

// ReservedOwner is a prefix that the Owner of a claim must not have. A fence has it if its claim was
// not made by a process: see package operate. Databases store and compare it. It must not change.
const ReservedOwner = "operator "

// Claimed returns f after c has replaced its claim. The new epoch is the lease's generation if that
// is higher than f.Epoch and c.Above. Otherwise it is the higher of these two plus one. [MaxStep]
// and [MaxAbove] limit the new epoch. The position stays, unless c is the first claim of the fence
// and adopts a position.
//
// The error matches [ErrNoLease], [ErrLogChanged], [ErrForeignLease] or [ErrPaused].
// It matches none of these for an id that is not new, a reserved owner, or an epoch out of reach.
func (f Fence) Claimed(c Claim) (Fence, error) {
	if f.Partition != c.Partition {
		return f, fmt.Errorf("epoch: the claim is of %s, and the fence of %s", c.Partition, f.Partition)
	}
	if c.ID == (ClaimID{}) || c.ID == f.Claim {
		return f, fmt.Errorf("epoch: claim %s: claim id %s is not a fresh one", f.Partition, c.ID)
	}
	if c.Generation <= 0 {
		return f, fmt.Errorf("epoch: claim %s: %w: its generation is %d", f.Partition, ErrNoLease, c.Generation)
	}
	if err := f.Check(c.Origin); err != nil {
		return f, err
	}
	if err := f.CheckRunning(); err != nil {
		return f, err
	}
	if strings.HasPrefix(c.Owner, ReservedOwner) {
		return f, fmt.Errorf("epoch: claim %s: owner %q: names that begin with %q are reserved", f.Partition, c.Owner, ReservedOwner)
	}
	if f.Epoch == math.MaxInt64 {
		return f, fmt.Errorf("epoch: claim %s: epochs are used up at %d", f.Partition, f.Epoch)
	}
	last := max(f.Epoch, c.Above, Epoch(c.Generation-1))
	if last > f.Epoch && (last > MaxAbove || last-f.Epoch > MaxStep) {
		return f, fmt.Errorf("epoch: claim %s under generation %d, above epoch %d: epoch %d is too high: an epoch is at most %d, and at most %d above the fence's, which is %d",
			f.Partition, c.Generation, c.Above, last+1, MaxAbove+1, MaxStep+1, f.Epoch)
	}
	if c.Adopt != nil {
		if f.Epoch > 0 {
			return f, fmt.Errorf("epoch: claim %s: it adopts offset %d, and the fence was claimed before, under epoch %d", f.Partition, c.Adopt.Offset, f.Epoch)
		}
		if c.Adopt.Offset < 0 {
			return f, fmt.Errorf("epoch: claim %s: it adopts offset %d: want no negative offset", f.Partition, c.Adopt.Offset)
		}
		f.Next, f.Mark, f.Applied = c.Adopt.Offset, c.Adopt.Mark, true
	}
	f.Epoch = last + 1
	f.Claim = c.ID
	f.Generation = c.Generation
	f.Owner = c.Owner
	return f, nil
}

// Advanced returns the fence after a. It checks ownership before the position: it returns a [*StaleError] if the
// fence belongs to another claim, and a [*MovedError] if the position is not a.From. An advance to
// an offset below a.From is another error.
func (f Fence) Advanced(a Advance) (Fence, error) {
	if f.Partition != a.Partition {
		return f, fmt.Errorf("epoch: the advance is of %s, and the fence of %s", a.Partition, f.Partition)
	}
	if a.To < a.From {
		return f, fmt.Errorf("epoch: advance %s from %d back to %d", a.Partition, a.From, a.To)
	}
	if err := f.Holds(Hold{a.Partition, a.Claim}); err != nil {
		return f, err
	}
	if f.Next != a.From {
		return f, &MovedError{Partition: f.Partition, From: a.From, Next: f.Next}
	}
	f.Next = a.To
	if a.To > a.From {
		f.Mark, f.Applied = a.Mark, true
	}
	return f, nil
}

// Advance moves a fence's position from From to To in the transaction that applied the messages in
// [From, To). From == To is allowed for a fenced transaction that applies no messages.
type Advance struct {
	Partition Partition
	Claim     ClaimID
	From      Offset
	To        Offset

	Mark Mark // of To
}

// Start says where a partition without a fence begins.
type Start struct {
	Origin

	// Next is the position if the group has no fence of this topic.
	Next Position

	// Earliest is the position if the group has other fences of this topic. Then the partition is
	// new or its fence was lost, and a later start could skip messages.
	Earliest Position
}

// Position is a place in a log. Its Mark lets the source recognise the log.
type Position struct {
	Offset Offset // of the next message
	Mark   Mark
}
