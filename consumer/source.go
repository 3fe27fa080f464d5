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
	// the policy: at its latest message for [StartLatest], and otherwise at its
	// earliest. It is asked only if the sink has no fence of this partition.
	Starts(ctx context.Context, policy StartPolicy) ([]epoch.Start, error)

	// Committed returns the position that the group had committed to the source
	// through other consumers than these, and whether there is one. One that a
	// process of ours has published is none: it belongs to fences that this sink
	// does not have. It is asked at the first claim of the partition: whoever
	// had it before has given it back.
	Committed(ctx context.Context) (at epoch.Position, ok bool, err error)

	// Confirm asks the source whether this process still holds the lease,
	// and returns the lease as it is held now. The fence is what the sink said
	// before; its position is published to the source on the way, as by Mirror. The answer
	// counts only if the tenure is still running when it arrives: otherwise,
	// and whenever the source says that the lease is gone for good, the error
	// is [ErrLost]. Any other error means "not known": ask again.
	Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error)

	// Read yields the messages from the fence's position on, in order, in
	// batches of whatever is ready. It ends without an error when the partition
	// is revoked or ctx ends. What a batch refers to may be kept until the next
	// one is asked for. Where the partition goes on without messages, a batch
	// without any moves the position, so that a partition with nothing to apply
	// keeps up with a log that loses its beginning. A gap between offsets is one
	// that the source can explain; one that it cannot, and a position the log does
	// not hold, is a [*PositionError]. Only where nothing was applied yet (the
	// fence's Applied is false) and retention has passed the position, Read begins
	// where the log begins. After an error Read has ended; it may be called again.
	Read(ctx context.Context, from epoch.Fence) iter.Seq2[Batch, error]

	// Mirror tells the source the position that the sink has committed, for
	// those who look there. It never blocks; the source publishes the newest
	// one when it suits, and at the end of the tenure. Nothing is decided by it.
	//
	// What the group had committed through other consumers is not taken back: as
	// long as the position is below that, or the partition was not claimed (the
	// fence's Epoch is zero), the source holds to theirs. A position below one
	// that we have published ourselves is published: somebody has set the fence
	// back, or the sink.
	Mirror(at epoch.Fence)
}

// Batch is what a Read yields: consecutive messages of the partition, and where
// the position is once they are applied.
type Batch struct {
	// Messages are in the order of their offsets. There may be none.
	Messages []Message

	// Next is the position after them: above every offset in Messages, and above
	// the position before. Where the log holds nothing more of the partition
	// behind the last message, it may be further on than that.
	Next epoch.Offset

	// Mark goes with Next.
	Mark epoch.Mark

	// Marks are those of the positions after each message, for a transaction
	// that takes only the first of them. Nil means that all are Mark.
	Marks []epoch.Mark
}

// Position is where the partition is once the first n messages are applied.
func (b Batch) Position(n int) epoch.Position {
	if n == len(b.Messages) {
		return epoch.Position{Offset: b.Next, Mark: b.Mark}
	}
	mark := b.Mark
	if b.Marks != nil {
		mark = b.Marks[n-1]
	}
	return epoch.Position{Offset: b.Messages[n-1].Offset + 1, Mark: mark}
}

// StartPolicy says where a group begins in a topic of which the sink has no
// fence yet. Once it has one, the policy has no effect but that of
// [StartCommitted]: a partition that is added later begins at its earliest
// message.
type StartPolicy int

const (
	// StartCommitted goes on where the group had committed through other
	// consumers, before it had a fence, and begins at the earliest message of a
	// partition for which it had committed nothing. It is the zero value. What the group had committed
	// is read when a partition is claimed for the first time: until then an old
	// consumer may go on committing for it.
	StartCommitted StartPolicy = iota

	// StartEarliest begins at the earliest message the source has, whatever the
	// group had committed.
	StartEarliest

	// StartLatest begins after the last message there is when the sink gets its
	// first fence of the topic.
	StartLatest
)

func (p StartPolicy) String() string {
	switch p {
	case StartCommitted:
		return "committed"
	case StartEarliest:
		return "earliest"
	case StartLatest:
		return "latest"
	default:
		return "unknown"
	}
}
