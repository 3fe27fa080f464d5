package consumer

import "github.com/epochfence/epochfence/epoch"

// follows checks what a source promises: nothing below the position, nothing
// twice.
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

// after is what is left once the first n messages are applied.
func (b Batch) after(n int) Batch {
	b.Messages = b.Messages[n:]
	if b.Marks != nil {
		b.Marks = b.Marks[n:]
	}
	if len(b.Messages) == 0 {
		b.Messages, b.Marks = nil, nil // an empty slice would keep the source's buffer alive
	}
	return b
}
