package epoch

// This file has what a sink is, and what it promises about a message that is applied again. consumer.Run
// refuses a sink that promises less than the options ask for.

// Facts are what a [Sink] is. Only Replaced changes.
type Facts struct {
	Guarantee Guarantee

	// Partitions limits the advances of a Commit, if it is not 0. A Commit with more returns [ErrTooLarge]
	// before it runs a call. It is 1 for a sink that is not [Transactional].
	Partitions int

	// Messages limits the messages of a transaction, over all its calls, if it is not 0. The consumer passes
	// no more. A sink need not count them. One with another limit, such as bytes, returns [ErrTooLarge].
	Messages int

	// Transactions is how many transactions the sink runs at a time, in each of its databases, and none waits
	// for another, as for a connection. 0 counts as 1. A consumer with the zero options opens so many, up to 4.
	Transactions int

	// Beside says that the calls of a Commit may run beside each other: see [TxOptions.Beside]. Each has a TX of
	// its own, and what one does wrong is not blamed on another.
	Beside bool

	// Replaced is closed when the sink notices that another server, such as a promoted standby, has taken
	// over its database. That server may lack the last commits. It is nil if the sink cannot notice that:
	// the consumer then polls the fences.
	Replaced <-chan struct{}
}

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
	// together or not at all, over any number of rows, and over as many partitions as its
	// [Facts] allow.
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
