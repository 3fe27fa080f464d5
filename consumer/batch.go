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
	if b.Next < next || b.Next == f.Next {
		return outOfOrder(b.Next)
	}
	return nil
}

// position is where the partition is once the first n messages are applied.
func (b Batch) position(n int) (next epoch.Offset, mark epoch.Mark) {
	if n == len(b.Messages) {
		return b.Next, b.Mark
	}
	mark = b.Mark
	if b.Marks != nil {
		mark = b.Marks[n-1]
	}
	return b.Messages[n-1].Offset + 1, mark
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
