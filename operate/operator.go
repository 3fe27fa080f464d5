package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the interface that sinks implement for operators, the selection of what they list,
// which actions on a dead letter are possible, and who makes a database keep dead rows. act.go has the
// actions on a fence.

// Operator operates the partitions of one sink. pgsink.OpenOperator, sqlsink.OpenOperator,
// cassink.Sink.Operator and memsink.Sink.Operator return one. Methods are safe for concurrent use.
// Errors name the partition or the dead letter, and wrap the errors of package epoch. After
// [epoch.ErrInDoubt], look the act up in History by its claim.
type Operator interface {
	// Partitions returns the partitions that f selects, in key order.
	Partitions(ctx context.Context, f Filter) ([]Partition, error)

	// Partition returns one partition, or [epoch.ErrMissing].
	Partition(ctx context.Context, p epoch.Partition) (Partition, error)

	// Act carries out a in one transaction with its entry in the audit log, and returns the new
	// fence. It ends open transactions of the claim that it replaces, if the database can do that.
	// It returns the errors of [Act.Apply].
	Act(ctx context.Context, a Act) (epoch.Fence, error)

	// History returns entries of the audit log, newest first.
	History(ctx context.Context, q HistoryQuery) ([]Decision, error)

	// Processes returns the processes of a group, or of all groups if group is empty, sorted by
	// group, name and first sign of life. A process that did not shut down in good order stays in
	// the list for 7 days.
	Processes(ctx context.Context, group string) ([]Process, error)

	// DeadLetters returns dead letters by ID, without the keys, values and headers of their
	// messages.
	DeadLetters(ctx context.Context, q DeadLetterQuery) ([]DeadLetter, error)

	// DeadLetter returns one dead letter with its message, or [ErrNoDeadLetter].
	DeadLetter(ctx context.Context, id int64) (DeadLetter, error)

	// DoDeadLetter carries out a on a dead letter, with its entry in the audit log.
	DoDeadLetter(ctx context.Context, a DeadLetterAct) (DeadLetter, error)

	// OutboxEntries returns entries of the outbox by ID, without the parts that may be secret: headers,
	// bodies, and everything in the URLs after the host. memsink and shardsink have none.
	OutboxEntries(ctx context.Context, q OutboxQuery) ([]OutboxEntry, error)

	// OutboxEntry returns one entry with all parts, or [ErrNoOutboxEntry].
	OutboxEntry(ctx context.Context, id int64) (OutboxEntry, error)

	// DoOutbox carries out a on an entry of the outbox, with its entry in the audit log.
	DoOutbox(ctx context.Context, a OutboxAct) error
}

// Filter selects partitions. The zero Filter selects all.
type Filter struct {
	Group, Topic string // empty: any
	Paused       bool   // only partitions that accept no claims; other queries ignore it
}

// Selects reports whether f selects the fence.
func (f Filter) Selects(fence epoch.Fence) bool {
	return (f.Group == "" || f.Group == fence.Partition.Group) && (f.Topic == "" || f.Topic == fence.Partition.Topic) &&
		(!f.Paused || fence.Pause.Mode != epoch.Running)
}

// Partition is a fence with the sink's other data about its partition.
type Partition struct {
	epoch.Fence

	// ClaimedAt and AdvancedAt are zero before the first claim and advance. Now is the time of the
	// read. All three are times by the sink's clock.
	ClaimedAt, AdvancedAt, Now time.Time

	// DeadLetters is the number of dead letters of the partition, without those that are deferred.
	DeadLetters int64

	// Unreadable says why the fence cannot be read, of which only the Partition is set then. A newer
	// version may have written it.
	Unreadable string
}

// DefaultLimit is the number of entries that a query without a limit returns.
const DefaultLimit = 100

// Limit returns the limit of a query, or [DefaultLimit].
func Limit(n int) int {
	if n <= 0 {
		return DefaultLimit
	}
	return n
}

// HistoryQuery selects entries of the audit log. The zero query selects the newest of all
// partitions.
type HistoryQuery struct {
	Partition *epoch.Partition // nil: all
	Claim     epoch.ClaimID    // zero: any
	Kinds     []DecisionKind
	Before    int64     // entries with a lower ID only; zero: all
	Until     time.Time // entries at this time or earlier; zero: all
	Limit     int       // zero: DefaultLimit
}

// DeadLetter is a message that OnFailure has stored.
type DeadLetter struct {
	ID      int64
	Message epoch.Message
	Epoch   epoch.Epoch // under which it was stored
	Error   string
	At      time.Time // when it was stored, by the sink's clock

	// Request counts the requests for a replay. Requested says that the last request, by
	// RequestedBy at RequestedAt, is not carried out yet.
	Request     int64
	Requested   bool
	RequestedBy string
	RequestedAt time.Time

	// ReplayError is the error of the last replay that failed, at ReplayFailedAt.
	ReplayError    string
	ReplayFailedAt time.Time

	// Due is when the owner of the partition replays a message that its handler has deferred, by consumer.RetryAfter.
	// It is zero for a dead letter. Deferred counts how often that was.
	Due      time.Time
	Deferred int
}

// DeadLetterQuery selects dead letters. The zero query selects the oldest, without those that are deferred.
type DeadLetterQuery struct {
	Filter
	Number    *int32 // of the partition; nil: any
	Requested bool   // only dead letters whose replay is requested
	Deferred  bool   // only those that are deferred
	After     int64  // only dead letters with a higher ID
	Limit     int    // zero: DefaultLimit
}

// DeadLetterKind is the kind of an operator action on a dead letter.
type DeadLetterKind string

const (
	// Replay requests that the handler gets the message again. The owner of the partition calls the
	// handler within seconds, in one transaction with the deletion of the dead letter. If the
	// replay fails, the dead letter stays, with the error.
	Replay DeadLetterKind = "replay"

	// Withdraw withdraws a request for a replay. What was deferred is a dead letter then.
	Withdraw DeadLetterKind = "withdraw"

	// Discard deletes the dead letter.
	Discard DeadLetterKind = "discard"
)

// DeadLetterAct is an operator action on a dead letter.
type DeadLetterAct struct {
	Kind DeadLetterKind

	// Seen is the dead letter that the operator saw. The act is refused with [ErrDeadLetterChanged]
	// if a replay was requested, withdrawn or tried since.
	Seen DeadLetter

	By, Reason, TraceID string // as in Act
}

// Check returns an error that matches [ErrAct] if no dead letter could take the act.
func (a DeadLetterAct) Check() error {
	switch a.Kind {
	case Replay, Withdraw, Discard:
	default:
		return fmt.Errorf("%w: %q; want %s, %s or %s", ErrAct, a.Kind, Replay, Withdraw, Discard)
	}
	return CheckWho(a.By, a.Reason, a.TraceID)
}

// Done returns the dead letter after a. l is the dead letter as stored now. Discard does not change
// l. The sink has to set the time of a request.
func (a DeadLetterAct) Done(l DeadLetter) (DeadLetter, error) {
	switch {
	case l.ID != a.Seen.ID || l.Request != a.Seen.Request || l.Requested != a.Seen.Requested || l.Deferred != a.Seen.Deferred:
		return l, ErrDeadLetterChanged
	case a.Kind == Replay && l.Requested:
		return l, fmt.Errorf("%w: its replay is requested already, by %s", ErrNothingToDo, l.RequestedBy)
	case a.Kind == Withdraw && !l.Requested && l.Due.IsZero():
		return l, fmt.Errorf("%w: its replay is not requested", ErrNothingToDo)
	case a.Kind == Replay:
		l.Request, l.Requested, l.RequestedBy, l.Due = l.Request+1, true, a.By, time.Time{}
	case a.Kind == Withdraw:
		l.Requested, l.Due = false, time.Time{}
	}
	return l, nil
}

// Decided returns the audit log entry for a on l. f is the fence of l's partition, or zero.
func (a DeadLetterAct) Decided(l DeadLetter, f epoch.Fence) Decision {
	kind := DecidedDiscard
	switch a.Kind {
	case Replay:
		kind = DecidedReplayRequest
	case Withdraw:
		kind = DecidedReplayWithdraw
	case Discard:
	}
	return Decision{
		Kind: kind, Partition: l.Message.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: l.Message.Offset, To: l.Message.Offset, By: a.By, TraceID: a.TraceID,
		Reason: fmt.Sprintf("dead letter %d: %s", l.ID, a.Reason),
	}
}

var (
	// ErrNoDeadLetter is returned if there is no dead letter with the ID: it was replayed or
	// discarded, or never existed.
	ErrNoDeadLetter = errors.New("no such dead letter")

	// ErrDeadLetterChanged is returned if the replay of the dead letter was requested, withdrawn
	// or tried since it was seen.
	ErrDeadLetterChanged = errors.New("the dead letter has changed since it was looked at")
)

// Snapshots is implemented by a sink whose database keeps dead row versions for as long as
// somebody holds a snapshot. Tables grow meanwhile.
type Snapshots interface {
	// OldestSnapshots returns the oldest snapshot of each kind of holder that there is. It is cheap:
	// a consumer calls it with each sign of life.
	OldestSnapshots(ctx context.Context) ([]Snapshot, error)
}

// Snapshot is a snapshot that is held.
type Snapshot struct {
	Holder       string        // one of the Holders
	Name         string        // application_name of the session or, if empty, its role; the id of the prepared transaction; the name of the slot
	PID          int           // of the server's process; zero without one
	Transactions int64         // how many have begun since it was taken
	Age          time.Duration // of its transaction; zero if this role may not see it, and for a slot
}

// The holders of snapshots, as metrics and tools name them.
const (
	HolderSession  = "session"
	HolderPrepared = "prepared_transaction"
	HolderSlot     = "replication_slot"
)
