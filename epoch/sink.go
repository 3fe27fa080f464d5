package epoch

import "context"

// Sink keeps fences beside the effects, in one database. TX is what handlers
// write through. Package sinks/sinktest holds the suite that every Sink must
// pass.
//
// The one property on which correctness rests: when Commit returns nil, all
// writes of apply and all of the advances are committed, together, and each
// fence carried its advance's claim and stood at its From until then. When it
// returns an error that is not [ErrInDoubt], none of them ever will be.
//
// A Sink is safe for concurrent use. Its errors name the partition and wrap the
// errors of this package.
type Sink[TX any] interface {
	// Guarantee says what the sink gives. It does not change. What follows is
	// written for [Transactional]; the others do the same for what fits in one
	// item, or leave out what their constants say.
	Guarantee() Guarantee

	// Fence reads the fence of p as last committed, or returns [ErrMissing].
	Fence(ctx context.Context, p Partition) (Fence, error)

	// Look reads the fences of ps as last committed, those that are there, at
	// the cost of little more than one. Like Fence it asks a database that
	// may be written, and never a replica that may lag behind: by a fence that
	// is not as we left it the claim is taken for lost.
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

	// Commit runs apply in a transaction, then moves the fences of as and
	// commits. Without any advance it would be a transaction without a fence,
	// and two of one partition have no order: both are refused before apply is
	// called. An error of apply is returned as it is or
	// wrapped, so that [errors.Is] finds it. If the connection went meanwhile
	// it is [ErrInDoubt] too, unless the handler itself broke the connection. A refused advance is a [*StaleError],
	// [*MovedError] or [*MissingError] and names the first refused partition in key
	// order. A handler that ended the transaction by itself is [ErrEscaped]. A
	// refusal of the database that passes, also of a handler's statement, is
	// [ErrTransient] beside what it was, and one that has to do with the state
	// of the database alone is [ErrUnhealthy].
	// apply is called at most once. ctx bounds the whole transaction; when it
	// ends before the commit was sent, nothing is committed.
	Commit(ctx context.Context, as []Advance, apply func(ctx context.Context, tx TX) error) error

	// CommitHeld runs apply in a transaction that commits only if the fence of h's
	// partition still carries h's claim. It is for work that goes with a partition
	// and not with its messages, such as an outbox's relay: it compares no position
	// and moves none.
	//
	// When it returns nil, all writes of apply are committed, and no later
	// claim of the partition was swapped in before that. So of two claims of one
	// partition all that the earlier one has committed, by Commit or CommitHeld,
	// comes before the later claim, and all that the later one commits after it.
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
