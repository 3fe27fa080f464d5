package epoch

import "context"

// Sink stores fences beside the effects, in one database. Handlers write through TX. Every
// Sink must pass the suite in package sinks/sinktest.
//
// Correctness rests on one property. When Commit returns nil, all writes of its calls and all
// advances are committed together, and until then each fence had its advance's claim and was
// at its From. When Commit returns an error other than [ErrInDoubt], none of them ever will be.
//
// A Sink is safe for concurrent use. Its errors name the partition and wrap the errors of this
// package.
//
// These five methods are what every store must have. What only some stores can do, or can do at
// less cost, a consumer asks for with [As]: [Looker], [Replaceable], [Holding], [Sharded], and
// operate.Operable.
type Sink[TX any] interface {
	// Guarantee returns the sink's guarantee. It does not change. The comments below are for
	// [Transactional]; the constants say how the others differ.
	Guarantee() Guarantee

	// Fence returns the committed fence of p, or [ErrMissing].
	Fence(ctx context.Context, p Partition) (Fence, error)

	// Seed adds fences as [Fences.Seed] does. Where a partition begins is decided once: no Seed
	// changes a fence that is there, and the next one completes a Seed that was interrupted as
	// that had decided. Concurrent calls for one group and topic have the outcome of one after
	// the other.
	Seed(ctx context.Context, starts []Start) error

	// Claim replaces the claim as [Fences.Claim] does. It returns [ErrStale] if the fence is no
	// longer as seen. It may end an open transaction of the claim that it replaces. If the
	// outcome is unknown, claim again with a new id.
	Claim(ctx context.Context, seen Fence, c Claim) (Fence, error)

	// Commit runs calls in a transaction, one after the other, then moves the fences of as and
	// commits. Each call runs at most once, with a TX of its own that refuses everything once
	// the call has returned. No call runs after one that fails. If ctx ends before the commit
	// was sent, nothing is committed.
	//
	// as has at least one advance, and at most one for each partition; otherwise Commit returns
	// an error before it runs a call. The other errors are
	//
	//   - an error of a call, as it is or wrapped, so that [errors.Is] finds it;
	//   - a [*CallError] for a call that did what it must not, whatever it returned.
	//     It matches [ErrOwnTransaction] where the same call could be committed in a
	//     transaction in which it is the only one;
	//   - [ErrAbandoned] where the transaction was abandoned while a call ran that may
	//     never return: see [AfterAbandoned];
	//   - a [*StaleError], [*MovedError] or [*MissingError] where an advance is
	//     refused, about the first refused partition in key order;
	//   - [ErrInDoubt] where it is not known whether the transaction was committed,
	//     and where the connection was lost, unless the handler broke it;
	//   - [ErrTxEndedByHandler] where a call ended the transaction by itself;
	//   - [ErrTransient] or [ErrUnhealthy], beside the database's own error, for what
	//     it refused, statements of the handler included; a store that is away is
	//     never the message's fault, whichever call met with it;
	//   - [ErrTooLarge] where the transaction is larger than the store allows;
	//   - a [*LowEpochError] where the store has seen a higher epoch than the claim's.
	Commit(ctx context.Context, as []Advance, calls ...func(ctx context.Context, tx TX) error) error
}
