package epoch

import "context"

// Sink keeps fences beside the effects, in one database. TX is what handlers
// write through. Package sinks/sinktest holds the suite that every Sink must
// pass.
//
// The one property on which correctness rests: when Commit returns nil, all
// writes of apply and all of the advances are committed, together, and each
// fence carried its advance's claim and was at its From until then. When it
// returns an error that is not [ErrInDoubt], none of them ever will be.
//
// A Sink is safe for concurrent use. Its errors name the partition and wrap the
// errors of this package. One of several databases is [Sharded] as well.
type Sink[TX any] interface {
	// Guarantee says what the sink gives. It does not change. What follows is
	// written for [Transactional]; the others do the same for what fits in one
	// item, or leave out what their constants say.
	Guarantee() Guarantee

	// Fence reads the fence of p as last committed, or returns [ErrMissing].
	Fence(ctx context.Context, p Partition) (Fence, error)

	// Look reads the fences of ps as last committed, those that are there, at
	// the cost of little more than one. Like Fence it asks a database that
	// may be written, and never a replica, which may lag behind: a consumer takes
	// a fence that is not as it left it for a claim that it has lost.
	Look(ctx context.Context, ps []Partition) (Fences, error)

	// Replaced returns a channel that is closed once the sink notices that the
	// server behind it is another one than before: a standby that was promoted,
	// say, which may lack what was committed last. It is nil, or never
	// closed, where a sink does not notice; then Look tells, later.
	Replaced() <-chan struct{}

	// Seed adds fences as [Fences.Seed] does, in one transaction. Of
	// concurrent calls for one group and topic, one comes first and the others
	// see what it did.
	Seed(ctx context.Context, starts []Start) error

	// Claim swaps c in as [Fences.Claim] does, and returns [ErrStale] if the
	// fence no longer is as seen. It may end an open transaction of the
	// claim it replaces. A Claim whose outcome is unknown does no harm: claim
	// again, with a fresh id.
	Claim(ctx context.Context, seen Fence, c Claim) (Fence, error)

	// Commit runs calls in a transaction, one after the other, then moves the
	// fences of as and commits. Each call runs at most once, and gets a TX of its
	// own that is refused everything once that call has returned. The first call
	// that fails is the last one that runs. ctx bounds the whole transaction; when
	// it ends before the commit was sent, nothing is committed.
	//
	// as holds one advance for each partition, at least one: anything else is
	// refused before anything is called. The other errors are
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
