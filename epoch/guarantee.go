package epoch

// Guarantee says what happens to an effect whose message is applied again, by an owner that
// was thought dead, after a crash, or because an answer was lost. A greater value guarantees
// more. The zero Guarantee guarantees nothing.
type Guarantee int

const (
	// Keyed sinks recognise an effect by an idempotency key, and compare no epoch. Each effect
	// happens once for as long as the key is remembered. An owner that has lost its partition
	// can still add effects, and the effects of two owners can come in either order.
	Keyed Guarantee = iota + 1

	// Conditional sinks compare and swap one item that has both the fence and the effect. An
	// effect cannot span two items, and a transaction cannot span two partitions.
	Conditional

	// Transactional sinks commit all effects of a transaction, its positions and its checks
	// of ownership together or not at all, over any number of rows and partitions.
	Transactional
)

func (g Guarantee) String() string {
	switch g {
	case Keyed:
		return "keyed"
	case Conditional:
		return "conditional"
	case Transactional:
		return "transactional"
	default:
		return "none"
	}
}
