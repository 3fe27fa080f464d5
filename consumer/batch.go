package consumer

import "github.com/epochfence/epochfence/epoch"

// This file checks that a batch continues at the fence's position (R10). Whether messages were lost
// in a gap in front of the batch is decided by the source.

// follows checks that the offsets increase and that none is below the position.
func (b Batch) follows(f epoch.Fence) error {
	next := f.Next
	outOfOrder := func(found epoch.Offset) error {
		return &PositionError{Partition: f.Partition, Kind: ErrOutOfOrder, Position: next, Found: found}
	}
	for _, m := range b.Messages {
		if m.Offset < next {
			return outOfOrder(m.Offset)
		}
		next = m.Offset + 1
	}
	if b.Next < next {
		return outOfOrder(b.Next)
	}
	return nil
}

// after returns the batch without its first n messages.
func (b Batch) after(n int) Batch {
	b.Messages = b.Messages[n:]
	if len(b.Messages) == 0 {
		b.Messages = nil // an empty slice would keep the source's buffer alive
	}
	return b
}
