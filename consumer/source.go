package consumer

import (
	"context"
	"iter"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what a Source must do, and what it may rely on; package consumer/sourcetest tests
// it. The source decides who may try to claim a partition, and whether messages were lost in a gap in front of
// a batch (R10); the sink, whose claim counts.

// Source leases partitions to this process and reads them. Every Source must pass the suite in
// package consumer/sourcetest.
type Source interface {
	// Run joins the group, and calls own for each partition that this process is granted, on a
	// goroutine of its own. own runs until the partition is lost or has been given back. Calls for
	// one partition never overlap, and none begins after Run has returned. If own returns early,
	// the source gives the partition up, or, if it cannot, leaves it idle until it is lost. After
	// [Tenure.GiveUp] it must give up the partition, if need be with all others.
	//
	// Run calls joined with nil when this process has become a member of the group, even if it has
	// no partitions, and with the reason when this process is no longer a member as far as it
	// knows. Run may repeat a call. joined does not block, and its calls do not overlap.
	//
	// When ctx ends, Run revokes all partitions, waits a limited time for own to return, releases
	// the leases and returns nil. An error means that Run cannot continue at all: the server could
	// not be reached at start, lacks a topic or refused us, or this member was fenced for good. Run
	// is called once.
	Run(ctx context.Context, joined func(err error), own func(ctx context.Context, t Tenure)) error

	// Identity returns the group that Run joins and the name of this process. The owner in a lease
	// is that name, alone or followed by a slash and more. Operators find the process of a fence by
	// the name, so it contains host and process. Identity may be called before Run.
	Identity() (group, name string)
}

// Tenure is one process's time with one partition. It ends in one of two ways:
//
//   - The partition is revoked. Draining is closed and Read ends. The transaction under way
//     may still commit; then own must return.
//   - The lease is lost. The context of own is cancelled with the cause, if possible before
//     another process can get the lease.
//
// Methods are safe for concurrent use, except that only one Read may run at a time.
type Tenure interface {
	// Origin returns the partition, its log, and the issuer of its lease.
	Origin() epoch.Origin

	// Term returns how long the lease lasts after its last acknowledged renewal, and how long a
	// drain may take. It is positive. A transaction must take less.
	Term() time.Duration

	// Draining returns a channel that is closed when the partition is revoked.
	Draining() <-chan struct{}

	// Starts returns the present partitions of the topic. Earliest is at the earliest message. Next
	// is after the last message for [StartLatest], and otherwise equal to Earliest. Starts is
	// called only if the sink has no fence of this partition.
	Starts(ctx context.Context, policy StartPolicy) ([]epoch.Start, error)

	// Committed returns the position that other consumers of the group have committed to the
	// source, if there is one. Positions that Mirror has published do not count. With
	// [StartCommitted] it is called at the first claim of the partition.
	Committed(ctx context.Context) (at epoch.Position, ok bool, err error)

	// Confirm asks the issuer of the lease whether this process still holds it, and returns the
	// lease as it is now. seen is the fence that the sink has just returned. Confirm publishes its
	// position, as Mirror does.
	//
	// Confirm returns [ErrLost] if the lease is known to be lost, or if the tenure has ended
	// before the answer arrives. Any other error means that the answer is unknown; the caller asks
	// again.
	Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error)

	// Read yields the messages from the fence's position on, in order, in batches of what is
	// ready. A batch without messages moves only the position, so that retention does not overtake
	// the position of an idle partition. The consumer requests the next batch when all messages of the
	// last one are applied. Then the source may reuse the slices of the last batch. It never overwrites
	// the bytes of Key, Value and Headers: handlers may keep them.
	//
	// Read ends without an error when the partition is revoked or ctx ends. If the caller leaves
	// the loop first, Read releases everything before it returns. Read ends with a
	// [*PositionError] at a gap between offsets that the source cannot explain, and at a position
	// that the log does not have. One exception: if the fence's Applied is false and retention has
	// passed the position, Read begins where the log begins. After an error Read may be called
	// again.
	Read(ctx context.Context, from epoch.Fence) iter.Seq2[Batch, error]

	// Mirror publishes the position of the sink's fence to the source, for tools that show lag. It
	// never blocks: the source publishes the newest position later, at the latest at the end of
	// the tenure.
	//
	// As long as the group has a position that other consumers have committed, Mirror does not replace it
	// by a lower one, nor by that of a fence that was never claimed (its Epoch is zero). A position that
	// an operator has set (SetUnder is above zero) replaces it in any case. Mirror does publish a position below one that Mirror has published before.
	Mirror(at epoch.Fence)

	// Lag returns the number of messages that Read would yield from the fence's position on. The
	// consumer calls it rarely, for halted partitions and for claimed ones that apply nothing, and
	// concurrently with Read. An error means that the number is unknown.
	Lag(ctx context.Context, from epoch.Fence) (int64, error)

	// GiveUp says that own is about to return early, because a call of a handler for the partition
	// does not return. When the call returns, the consumer closes the channel. Until then the source
	// must not grant the partition to this process. Once own has returned, the source lets other
	// processes have it at once. A source that cannot give up one partition gives up all of them in good
	// order, by leaving the group for a while. If it grants the partition too early, own calls
	// GiveUp again and returns.
	GiveUp(returned <-chan struct{})
}

// Remover is implemented by a [Source] whose members can end the membership of another one, so that the
// partitions of a process that has died need not wait for its session timeout. It is safe at any time:
// who is removed wrongly is refused by the sink, and joins again.
type Remover interface {
	// Member returns this process's id in the group, which is empty while it is no member, and the time after
	// which the group removes a silent member by itself. If static is true, a process that restarts is to keep
	// its partitions.
	Member() (id string, session time.Duration, static bool)

	// Remove ends the membership of another member, if it is one still, and has the group share out its
	// partitions at once. Each process that sees a suspicion calls it. The error is [ErrMayNotRemove] if this
	// process lacks the permission. reason is for the logs of the servers.
	Remove(ctx context.Context, member, reason string) error
}

// Hastener is a [Remover] that hears of its own removal by asking its group, which may be seconds later.
type Hastener interface {
	Remover

	// Hasten is called when others have suspected this process. It does not wait.
	Hasten()
}

// Rejoiner is a [Remover] that can stay out of its group after others have removed it.
type Rejoiner interface {
	Remover

	// RejoinWhen is called once, before Run. If another process has removed this one from the group, this one
	// calls ready until it returns nil, and then joins again. The error says why it could do nothing with
	// partitions: its sink does not answer it.
	RejoinWhen(ready func(context.Context) error)
}

// StartDescriber is implemented by a [Tenure] whose partitions begin neither as [StartPolicy] says nor
// where others have committed.
type StartDescriber interface {
	// DescribeStart says where the partition begins, for the log line of its first claim. The line
	// has the text as begins="…". first is the fence after that claim.
	DescribeStart(first epoch.Fence) string
}

// Batch has consecutive messages of a partition, and the position after them.
type Batch struct {
	// Messages are in the order of their offsets, each with its Mark. There may be none.
	Messages []Message

	// Next is the position after Messages: above all their offsets and above the position before.
	// It may be further on if the log has no more messages of the partition in between.
	Next epoch.Offset

	// Mark is the mark of Next.
	Mark epoch.Mark

	// End is Next plus the number of messages after it, as of the read, or zero if that is
	// unknown. It is only shown to operators.
	End epoch.Offset

	// Missed and Late are of jobs, and only shown to operators: how many ticks before Next no process
	// ran in time, so that they are left out, and how long after its time the tick of Messages begins.
	Missed int
	Late   time.Duration
}

func (b Batch) lag() int64 {
	if b.End == 0 {
		return -1
	}
	return int64(max(b.End-b.Next, 0)) + int64(len(b.Messages))
}

// Position returns the position after the first n messages.
func (b Batch) Position(n int) epoch.Position {
	if n == len(b.Messages) {
		return epoch.Position{Offset: b.Next, Mark: b.Mark}
	}
	last := b.Messages[n-1]
	return epoch.Position{Offset: last.Offset + 1, Mark: last.Mark}
}

// StartPolicy sets where a group begins in a topic for which the sink has no fence. A partition that
// is added later begins at its earliest message or, with [StartCommitted], at the position that
// the group had committed through other consumers.
type StartPolicy int

const (
	// StartCommitted continues at the position that the group had committed through other
	// consumers, before it had a fence. A partition without such a position begins at its earliest
	// message. The position is read when the partition is claimed for the first time: until then an
	// old consumer may continue with it. What old consumers have applied beyond it is applied
	// again. If they have a dedupe table, keep it until epochfence moveover says that it may go.
	StartCommitted StartPolicy = iota

	// StartEarliest begins at the earliest message, whatever the group had committed.
	StartEarliest

	// StartLatest begins after the last message that exists when the sink gets its first fence of
	// the topic.
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

// follows checks that the offsets increase and that none is below the position.
func (b Batch) follows(f epoch.Fence) error {
	next := f.Next
	outOfOrder := func(found epoch.Offset) error {
		return &PositionError{Partition: f.Partition, Kind: ErrOutOfOrder, Position: next, Found: found}
	}
	for _, m := range b.Messages {
		if m.Offset < next {
			return outOfOrder(m.Offset)
		}
		next = m.Offset + 1
	}
	if b.Next < next {
		return outOfOrder(b.Next)
	}
	return nil
}

// after returns the batch without its first n messages.
func (b Batch) after(n int) Batch {
	b.Messages = b.Messages[n:]
	if len(b.Messages) == 0 {
		b.Messages = nil // an empty slice would keep the source's buffer alive
	}
	return b
}
