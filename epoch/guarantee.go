package epoch

// Guarantee is what a sink makes of an effect whose message is applied again:
// by an owner that was thought dead, after a crash, or because an answer was
// lost. A greater one gives more. The zero Guarantee is none of them.
type Guarantee int

const (
	// Keyed: the sink knows an idempotency key by which it recognises an effect
	// that it has already, and keeps no epoch. Each effect happens once for as
	// long as the key is remembered; an owner that has lost its partition can
	// still add effects, and those of two owners can come in either order.
	Keyed Guarantee = iota + 1

	// Conditional: the sink compares and swaps one item, which holds the fence
	// and the effect. Within that item it is as good as Transactional; an
	// effect cannot span two items, nor a transaction two partitions.
	Conditional

	// Transactional: all effects of a transaction, its positions and its checks
	// of ownership commit together or not at all, over any number of rows and
	// partitions.
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
