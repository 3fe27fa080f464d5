package epoch

// Guarantee is what a sink guarantees when a message is applied again: by an owner that was thought
// dead, after a crash, or after a lost answer. A greater value guarantees more. The zero Guarantee
// guarantees nothing.
type Guarantee int

const (
	// Keyed sinks recognise an effect by an idempotency key, and compare no epoch. Each effect
	// happens once for as long as the store keeps the key. An owner that has lost its partition can
	// still add effects, and the effects of two owners can come in either order.
	Keyed Guarantee = iota + 1

	// PerItem sinks apply each message to each item exactly once, and an owner that has lost its
	// partition changes no item that its successor has changed. The changes of one message to several
	// items, and the position, are written one by one. A transaction cannot span two partitions.
	PerItem

	// Conditional sinks compare and swap one item that contains both the fence and the effect. An
	// effect cannot span two items, and a transaction cannot span two partitions.
	Conditional

	// Transactional sinks commit the effects, positions and ownership checks of a transaction
	// together or not at all, over any number of rows, and over as many partitions as [Bounds]
	// allows.
	Transactional
)

func (g Guarantee) String() string {
	switch g {
	case Keyed:
		return "keyed"
	case PerItem:
		return "per item"
	case Conditional:
		return "conditional"
	case Transactional:
		return "transactional"
	default:
		return "none"
	}
}
