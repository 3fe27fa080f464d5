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
	// Run joins the group, and calls own for each partition that this process is
	// granted, on a goroutine of its own. own runs until the partition is lost or has
	// been given back. Two calls for one partition never overlap, and none is made
	// after Run has returned. If own returns early the source gives the partition up,
	// or, where it cannot, leaves it idle until it is lost; see [Tenure.GiveUp].
	//
	// joined is told nil when this process has become a member of the group, which
	// may grant it partitions or none, and the reason when it is not a member any
	// more, or not as far as it knows. It may be told the same again. It does not
	// block, and calls of it do not overlap.
	//
	// When ctx ends, Run revokes all partitions, waits for own to return, bounded in
	// time, releases the leases and returns nil. An error means that the source
	// cannot continue at all: it could not be reached at start, lacks a topic, refused
	// us, or this member was fenced for good. Run is called once.
	Run(ctx context.Context, joined func(err error), own func(ctx context.Context, t Tenure)) error

	// Identity returns the group that Run joins, and the name of this process that the owners
	// in its leases are: the name alone, or followed by a slash and more. By it people find
	// the process of a fence, so it names host and process. It may be asked before Run.
	Identity() (group, name string)
}

// Tenure is one process's time with one partition. It ends in one of two ways:
//
//   - The partition is revoked. Draining is closed and Read ends; the batch in hand
//     may still commit, and then own must return.
//   - The lease is lost. The context given to own is cancelled, with the cause. The
//     source does so before anybody else can have the lease, wherever it can.
//
// Methods are safe for concurrent use, except that one Read runs at a time.
type Tenure interface {
	// Origin says which partition of which log this is and who leases it.
	Origin() epoch.Origin

	// Term is how long the lease outlives the last sign of life of this
	// process, and how long a drain may take. A transaction must be over
	// sooner. It is positive.
	Term() time.Duration

	// Draining is closed when the partition is revoked.
	Draining() <-chan struct{}

	// Starts says where each partition that the topic has now begins under
	// the policy: at its latest message for [StartLatest], and otherwise at its
	// earliest. It is asked only if the sink has no fence of this partition.
	Starts(ctx context.Context, policy StartPolicy) ([]epoch.Start, error)

	// Committed returns the position that the group had committed to the source
	// through consumers of another kind, and whether there is one. A position that
	// Mirror has published does not count, in whatever process: it belongs to a
	// fence that this sink does not have. It is asked at the first claim of the
	// partition, when whoever had it before has given it back.
	Committed(ctx context.Context) (at epoch.Position, ok bool, err error)

	// Confirm asks whoever grants the leases whether this process still holds this
	// one, and returns it as it is now. seen is the fence that the sink has just
	// returned; its position is published on the way, as by Mirror.
	//
	// The error is [ErrLost] if the lease is known to be gone, and also if the tenure
	// has ended by the time the answer arrives. Any other error means that it is not
	// known: ask again.
	Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error)

	// Read yields the messages from the fence's position on, in order, in batches of
	// whatever is ready. A batch's slices of messages and marks are the source's again
	// once the next batch is asked for. What a message refers to is never written again:
	// a handler may keep it. A batch without messages moves the position alone, so that a
	// partition with nothing to apply keeps up with a log that loses its beginning.
	//
	// Read ends without an error when the partition is revoked or ctx ends. Where the
	// loop over it ends first, it lets go of all it has before it returns: ctx continues. It ends
	// with a [*PositionError] at a gap between offsets that the source cannot explain,
	// and at a position that the log does not hold. There is one exception: if nothing
	// was applied yet (the fence's Applied is false) and retention has passed the
	// position, Read begins where the log begins. After an error it may be called
	// again.
	Read(ctx context.Context, from epoch.Fence) iter.Seq2[Batch, error]

	// Mirror tells the source the position that the sink has committed, for people
	// who look there. It never blocks; the source publishes the newest one when it
	// suits, and at the end of the tenure. Nothing is decided by it.
	//
	// It takes nothing back that the group had committed through consumers of another
	// kind: it publishes nothing while the position is below theirs, or while the
	// partition was never claimed (the fence's Epoch is zero). A position below one
	// that we have published ourselves is published, as somebody has set the fence or
	// the sink back.
	Mirror(at epoch.Fence)

	// Lag returns how many messages there are from the fence's position on, as the log is
	// now: what Read would yield, from where the log begins if that is above the position.
	// It is asked, seldom, for partitions that are not read, and may be asked beside a Read.
	// It is for people; nothing is decided by it. An error means that it is not known.
	Lag(ctx context.Context, from epoch.Fence) (int64, error)

	// GiveUp says that own is about to return early, and that this process cannot have the
	// partition before until is closed: a call of a handler for it does not return. Once
	// own has returned, the source lets other processes have the partition, at once, and
	// does not ask for it before until is closed. Where it cannot give up one partition
	// alone, it gives up all of them in good order, by leaving the group for a while. It
	// may grant the partition all the same; own then calls GiveUp again, and returns.
	GiveUp(until <-chan struct{})
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

	// End is where the log ends, as far as the source knew when it read: Next, and one more
	// for each message that is to come after it. Zero if that is not known. It is for
	// people, who look at how far behind a partition is; nothing is decided by it.
	End epoch.Offset
}

// lag is how many messages there are from the batch's first on, or -1.
func (b Batch) lag() int64 {
	if b.End == 0 {
		return -1
	}
	return int64(max(b.End-b.Next, 0)) + int64(len(b.Messages))
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
	// StartCommitted continues where the group had committed through consumers of
	// another kind, before it had a fence, and begins at the earliest message of a
	// partition for which it had committed nothing. What the group had committed is
	// read when a partition is claimed for the first time: until then an old consumer
	// may continue with it. What the old ones have applied beyond it is applied again: their
	// dedupe table, if they have one, stays until epochfence moveover says that it may go.
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
