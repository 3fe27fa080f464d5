package consumer

import (
	"context"
	"iter"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Source leases partitions to this process and reads them. Package
// consumer/sourcetest holds the suite that every Source must pass.
type Source interface {
	// Run joins, and calls own on a goroutine of its own for each partition
	// granted to this process, from grant to loss. It calls it for a partition
	// only after the call for an earlier tenure of the same partition has
	// returned, and never after Run has. When own returns early the partition is given up, where the
	// source can do so, and otherwise left idle until it is lost.
	//
	// When ctx ends, Run drains: it asks for each partition back, waits for
	// own to return, bounded in time, releases the leases and returns nil.
	// An error means that the source cannot go on at all: it could not be
	// reached at start, lacks a topic or refused us, or this member was fenced
	// for good.
	// Run is called once.
	Run(ctx context.Context, own func(ctx context.Context, t Tenure)) error
}

// Tenure is one process's time with one partition. There are two ways to lose
// it. When it is to be drained, Draining is closed and Read ends; the batch in
// hand may still commit, and then own must return. When it is lost, the context
// given to own is cancelled with the cause: nothing can commit any more, and
// the source makes sure of that before the lease can be anyone else's wherever
// it can. Methods are safe for concurrent use, except that one Read runs at a
// time.
type Tenure interface {
	// Origin says which partition of which log this is and who leases it.
	Origin() epoch.Origin

	// Term is how long the lease outlives the last sign of life of this
	// process, and how long a drain may take. A transaction must be over
	// sooner. It is positive.
	Term() time.Duration

	// Draining is closed when the partition is asked back.
	Draining() <-chan struct{}

	// Starts says where each partition that the topic has now begins under
	// the policy. It is asked only if the sink has no fence of this partition.
	Starts(ctx context.Context, policy StartPolicy) ([]epoch.Start, error)

	// Confirm asks the source whether this process still holds the lease,
	// and returns the lease as it is held now. The fence is what the sink said
	// before; its position is published to the source on the way. The answer
	// counts only if the tenure is still running when it arrives: otherwise,
	// and whenever the source says that the lease is gone for good, the error
	// is [ErrLost]. Any other error means "not known": ask again.
	Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error)

	// Read yields the messages from the fence's position on, in order, in
	// slices of whatever is ready, never empty. It ends without an error when
	// the partition is drained or ctx ends. The messages of a slice may be kept
	// until the next one is asked for. Where the partition goes on without
	// messages, a message that is only Control moves the position, so that a
	// partition with nothing to apply keeps up with a log that loses its
	// beginning. A gap between offsets is one that the source can explain; one that it cannot, and a position the log
	// does not hold, is a [*PositionError]. After an error Read has ended; it
	// may be called again.
	Read(ctx context.Context, from epoch.Fence) iter.Seq2[[]Message, error]

	// Mirror tells the source the position that the sink has committed, for
	// those who look there. It never blocks; the source publishes the newest
	// one when it suits, and at the end of the tenure. Nothing is decided by it.
	Mirror(at epoch.Fence)
}

// StartPolicy says where a group begins in a topic of which the sink has no
// fence yet. Once it has one, the policy has no effect: a partition that is
// added later begins at its earliest message.
type StartPolicy int

const (
	// StartEarliest begins at the earliest message the source has. It is the
	// zero value.
	StartEarliest StartPolicy = iota

	// StartLatest begins after the last message there is.
	StartLatest

	// StartCommitted adopts the positions which the group committed to the
	// source before it had a fence, and the earliest message for a partition
	// that has none.
	StartCommitted
)

func (p StartPolicy) String() string {
	switch p {
	case StartEarliest:
		return "earliest"
	case StartLatest:
		return "latest"
	case StartCommitted:
		return "committed"
	default:
		return "unknown"
	}
}
