package epoch

// This file has what a sink promises about a message that is applied again. consumer.Run refuses a
// sink that promises less than the options ask for.

// Guarantee is what a sink guarantees when a message is applied again: by an owner that was thought
// dead, after a crash, or after a lost answer. A greater value guarantees more. The zero Guarantee
// guarantees nothing.
type Guarantee int

const (
	// PerItem sinks apply each message to each item exactly once, and an owner that has lost its
	// partition changes no item that its successor has changed. The changes of one message to several
	// items, and the position, are written one by one. A transaction cannot span two partitions.
	PerItem Guarantee = iota + 1

	// Transactional sinks commit the effects, positions and ownership checks of a transaction
	// together or not at all, over any number of rows, and over as many partitions as [Bounds]
	// allows.
	Transactional
)

func (g Guarantee) String() string {
	switch g {
	case PerItem:
		return "per item"
	case Transactional:
		return "transactional"
	default:
		return "none"
	}
}
