package epoch

import (
	"context"
	"fmt"
)

// This file has what only some sinks can do. Package consumer finds each capability with As, and
// manages without it.

// Holding is implemented by a [Sink] that can commit under a claim without moving the position. The
// outbox's relay needs it.
type Holding[TX any] interface {
	// CommitHeld runs apply in a transaction that commits only if the fence of h's partition still
	// carries h's claim. It compares no position and moves none. It is for work that belongs to a
	// partition and not to its messages, such as an outbox's relay.
	//
	// When CommitHeld returns nil, all writes of apply are committed, and they were committed
	// before any later claim of the partition was swapped in. A Claim after the check of the fence
	// waits until the transaction has ended, or ends it. A Claim before that check makes the
	// transaction stale.
	//
	// Transactions of one claim have no order among themselves. A Commit of the same partition and
	// other calls of CommitHeld may run and commit at the same time, if the database allows it. If
	// they conflict, locks or constraints of the database have to keep them apart.
	//
	// CommitHeld returns the errors of Commit with the same meaning, and never a [*MovedError]. The
	// zero claim is refused with a [*StaleError].
	CommitHeld(ctx context.Context, h Hold, o TxOptions, apply func(ctx context.Context, tx TX) error) error
}

// CommitHeld calls [Holding.CommitHeld], or returns an error if the sink does not implement it.
func CommitHeld[TX any](ctx context.Context, sink Sink[TX], h Hold, o TxOptions, apply func(ctx context.Context, tx TX) error) error {
	if s, ok := As[Holding[TX]](sink); ok {
		return s.CommitHeld(ctx, h, o, apply)
	}
	return fmt.Errorf("epoch: commit under the claim of %s: the sink moves a position in each transaction", h.Partition)
}

// As returns the first T among sink and the sinks that it wraps. A sink that wraps another sink has
// a method Unwrap() Sink[TX].
func As[T any, TX any](sink Sink[TX]) (T, bool) {
	for sink != nil {
		if t, ok := sink.(T); ok {
			return t, true
		}
		w, ok := sink.(interface{ Unwrap() Sink[TX] })
		if !ok {
			break
		}
		sink = w.Unwrap()
	}
	var none T
	return none, false
}
