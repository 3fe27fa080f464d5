package epoch

import "fmt"

// This file decides whether a transaction that moves no position still has its claim. A sink also
// has to make later claims wait for that transaction.

// Hold names the claim that a transaction depends on when it moves no position. See
// [Holding.CommitHeld].
type Hold struct {
	Partition Partition
	Claim     ClaimID
}

// Holds returns nil if the fence carries the claim of h, at any position, and otherwise a
// [*StaleError].
func (f Fence) Holds(h Hold) error {
	if f.Partition != h.Partition {
		return fmt.Errorf("epoch: the hold is of %s, and the fence of %s", h.Partition, f.Partition)
	}
	if f.Claim != h.Claim || h.Claim == (ClaimID{}) {
		return &StaleError{Partition: f.Partition, Ours: h.Claim, Held: f}
	}
	return nil
}

// Hold calls [Fence.Holds] on the fence of h's partition, or returns a [*MissingError]. It changes
// nothing.
func (fs Fences) Hold(h Hold) error {
	f, err := fs.Read(h.Partition)
	if err != nil {
		return err
	}
	return f.Holds(h)
}
