package epoch

import "fmt"

// Hold names a claim that a transaction needs without moving the position: see
// [Sink.CommitHeld].
type Hold struct {
	Partition Partition
	Claim     ClaimID
}

// Holds returns nil if the fence carries the claim of h, wherever its position is,
// or a [*StaleError] where it belongs to another claim, or to none.
func (f Fence) Holds(h Hold) error {
	if f.Partition != h.Partition {
		return fmt.Errorf("epoch: hold of %s on the fence of %s", h.Partition, f.Partition)
	}
	if f.Claim != h.Claim || h.Claim == (ClaimID{}) {
		return &StaleError{Partition: f.Partition, Ours: h.Claim, Held: f}
	}
	return nil
}

// Hold returns nil if the fence of h's partition carries its claim, and otherwise
// what [Fence.Holds] does, or a [*MissingError]. It changes nothing.
func (fs Fences) Hold(h Hold) error {
	f, err := fs.Read(h.Partition)
	if err != nil {
		return err
	}
	return f.Holds(h)
}
