package epoch

import "context"

// This file is what package consumer asks of a database. The sinks fulfil it, and sinks/sinktest
// checks them.

// Sink stores fences beside the effects, in one database. Handlers write through TX. Every
// Sink must pass the suite in package sinks/sinktest.
//
// Correctness rests on one property. When Commit returns nil, all writes of its calls and all
// advances were committed together, and until then each fence had its advance's claim and From.
// When Commit returns an error other than [ErrInDoubt] or [ErrTxEndedByHandler], none of them is
// committed, now or later.
//
// A Sink is safe for concurrent use. Its errors name the partition and wrap the errors of this
// package.
//
// Every Sink has these five methods. The optional interfaces are [Holding], [Sharded] and
// operate.Ledger. A consumer finds them with [As].
type Sink[TX any] interface {
	// Facts returns what the sink is. The comments below are for [Transactional]. The constants say how other
	// sinks differ.
	Facts() Facts

	Looker

	// Seed adds fences as [Fences.Seed] does. The start of a partition is decided once: Seed never
	// changes an existing fence. If a Seed was interrupted, the next Seed completes it as the first
	// had decided. Concurrent calls for one group and topic are serialized.
	Seed(ctx context.Context, starts []Start) error

	// Claim replaces the claim as [Fences.Claim] does. It returns [ErrStale] if the fence is no
	// longer as seen. It may terminate the connection of an open transaction of the claim that it
	// replaces. If that transaction has just ended, and a pool has given its connection to another call of
	// the methods Look or Claim, that call returns [ErrTransient]. If the outcome is unknown, claim again with a new id.
	Claim(ctx context.Context, seen Fence, c Claim) (Fence, error)

	// Commit runs calls in a transaction, as [TxOptions.Each] does, then moves the fences of as and
	// commits. Each call runs at most once, with a TX of its own that refuses all use after the
	// call has returned. Commit begins no call after one
	// that has failed. If ctx ends before the commit
	// was sent, nothing is committed.
	//
	// as has at least one advance, and at most one for each partition. Otherwise Commit returns an
	// error before it runs a call. The other errors are
	//
	//   - an error of a call, as it is or wrapped, so that [errors.Is] finds it;
	//   - a [*CallError] if a call did something that it must not, whatever it returned.
	//     It matches [ErrOwnTransaction] if the same call could be committed alone in a
	//     transaction;
	//   - [ErrAbandoned] if the transaction was abandoned while a call was running: see
	//     [TxOptions.AfterAbandoned];
	//   - a [*StaleError], [*MovedError] or [*MissingError] if an advance is refused, about
	//     the first refused partition in key order;
	//   - [ErrInDoubt] if it is not known whether the transaction was committed, or if the
	//     connection was lost, unless the handler broke it;
	//   - [ErrTxEndedByHandler] if a call ended the transaction by itself;
	//   - [ErrTransient] or [ErrUnhealthy], together with the database's own error, if the
	//     database refused a statement, including the handler's. An unreachable store is never
	//     the message's fault, whichever call found it unreachable;
	//   - [ErrTooLarge] if the transaction is larger than the store allows;
	//   - a [*LowEpochError] if the store has seen a higher epoch than the claim's.
	Commit(ctx context.Context, as []Advance, o TxOptions, calls ...func(ctx context.Context, tx TX) error) error
}

// Looker reads fences.
type Looker interface {
	// Look returns the committed fences of ps that exist. It must not read a replica: a consumer concludes
	// from an older fence that the sink went back.
	Look(ctx context.Context, ps []Partition) (Fences, error)
}

// FenceOf returns the committed fence of p, or a [*MissingError].
func FenceOf(ctx context.Context, in Looker, p Partition) (Fence, error) {
	found, err := in.Look(ctx, []Partition{p})
	if err != nil {
		return Fence{}, err
	}
	return found.Read(p)
}
