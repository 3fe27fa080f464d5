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
// package. A Sink of several databases also implements [Sharded].
type Sink[TX any] interface {
	// Guarantee returns the sink's guarantee. It does not change. The comments below are for
	// [Transactional]; the constants say how the others differ.
	Guarantee() Guarantee

	// Fence returns the committed fence of p, or [ErrMissing].
	Fence(ctx context.Context, p Partition) (Fence, error)

	// Look returns the committed fences of ps that exist, at about the cost of one Fence. Like
	// Fence it must not read a replica: a consumer takes an older fence for a lost claim.
	Look(ctx context.Context, ps []Partition) (Fences, error)

	// Replaced returns a channel that is closed once the sink notices that another server has
	// taken the database over, such as a promoted standby, which may lack the last commits. A
	// sink that does not notice returns nil; the consumer then finds out by Look.
	Replaced() <-chan struct{}

	// Seed adds fences as [Fences.Seed] does, in one transaction. Concurrent calls for one
	// group and topic run one after the other.
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
	//     it refused, statements of the handler included.
	Commit(ctx context.Context, as []Advance, calls ...func(ctx context.Context, tx TX) error) error

	// CommitHeld runs apply in a transaction that commits only if the fence of h's
	// partition still carries h's claim. It is for work that goes with a partition
	// and not with its messages, such as an outbox's relay: it compares no position
	// and moves none.
	//
	// When it returns nil, all writes of apply are committed, and no later
	// claim of the partition was swapped in before that. So whatever is committed
	// under a claim, by Commit or CommitHeld, is committed before the next claim of
	// the partition is swapped in.
	// Between transactions of one claim there is no order: a Commit of the same
	// partition, and other calls of CommitHeld, may run and commit beside it, where
	// the database allows it. What they must not do at the same time they have to
	// settle between themselves, by locks or constraints of the database. A Claim of
	// the partition waits until the transaction has ended, or ends it, and one that
	// comes before the check makes the transaction stale.
	//
	// A refusal is a [*StaleError], for the zero claim too, or a [*MissingError],
	// and never a [*MovedError]. Otherwise it is like Commit, with its errors and what
	// they mean. A sink that is not [Transactional] need not offer it: then it
	// returns an error that says so, before apply is called.
	CommitHeld(ctx context.Context, h Hold, apply func(ctx context.Context, tx TX) error) error
}
