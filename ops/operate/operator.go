package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Operator operates the partitions of one sink. pgsink.OpenOperator,
// sqlsink.OpenOperator and memsink.Sink.Operator return one. Methods are safe for
// concurrent use. Errors name the partition, or the dead letter, and wrap those of
// package epoch; [epoch.ErrInDoubt] means that it is not known whether the act was
// done: History, asked for its claim, tells.
type Operator interface {
	// Partitions lists what f selects, in key order.
	Partitions(ctx context.Context, f Filter) ([]Partition, error)

	// Partition is that of one fence, or [epoch.ErrMissing].
	Partition(ctx context.Context, p epoch.Partition) (Partition, error)

	// Act does a, in one transaction with its entry in the audit log, and returns
	// the fence as it is then. Open transactions of the claim that it replaces are
	// ended, where the database can do that. Its refusals are those of
	// [epoch.Fence.Operated].
	Act(ctx context.Context, a epoch.Act) (epoch.Fence, error)

	// History reads the audit log, newest first.
	History(ctx context.Context, q HistoryQuery) ([]epoch.Decision, error)

	// Processes lists the processes of a group, or of all groups if it is empty, by group,
	// name and when they were seen first: those that are alive, and those that were not seen
	// any more and have not ended in good order, for 7 days.
	Processes(ctx context.Context, group string) ([]epoch.Process, error)

	// DeadLetters lists dead letters in the order of their IDs, without the keys,
	// values and headers of their messages.
	DeadLetters(ctx context.Context, q DeadLetterQuery) ([]DeadLetter, error)

	// DeadLetter is one of them, with its message whole, or [ErrNoDeadLetter].
	DeadLetter(ctx context.Context, id int64) (DeadLetter, error)

	// DoDeadLetter does a to a dead letter, with its entry in the audit log.
	DoDeadLetter(ctx context.Context, a DeadLetterAct) (DeadLetter, error)
}

// Filter selects partitions. The zero Filter selects all.
type Filter struct {
	Group, Topic string // empty: any
	Paused       bool   // only those that take no claims
}

// Selects reports whether f selects it.
func (f Filter) Selects(fence epoch.Fence) bool {
	return (f.Group == "" || f.Group == fence.Partition.Group) && (f.Topic == "" || f.Topic == fence.Partition.Topic) &&
		(!f.Paused || fence.Standing.Mode != epoch.Running)
}

// Partition is a fence, and what the sink knows about it for people.
type Partition struct {
	epoch.Fence

	// ClaimedAt and AdvancedAt are zero before the first claim and advance. They
	// and Now, which is when it was read, are times of the sink's database.
	ClaimedAt, AdvancedAt, Now time.Time

	// DeadLetters is how many there are of the partition.
	DeadLetters int64
}

// Operated reports whether the claim in the fence is an operator's act, which no owner has
// followed yet.
func (p Partition) Operated() bool {
	return len(p.Owner) > len(epoch.OperatorPrefix) && p.Owner[:len(epoch.OperatorPrefix)] == epoch.OperatorPrefix
}

// DefaultLimit is how many entries are returned where a query has no limit.
const DefaultLimit = 100

// Limit is how many entries the Limit of a query stands for.
func Limit(n int) int {
	if n <= 0 {
		return DefaultLimit
	}
	return n
}

// HistoryQuery selects entries of the audit log. The zero query is for the newest of
// all partitions.
type HistoryQuery struct {
	Partition *epoch.Partition // nil: all
	Claim     epoch.ClaimID    // zero: any
	Kinds     []epoch.DecisionKind
	Before    int64 // entries with a lower ID only; zero: all
	Until     time.Time
	Limit     int // zero: DefaultLimit
}

// Selects reports whether q, without its limit, selects d.
func (q HistoryQuery) Selects(d epoch.Decision) bool {
	return (q.Partition == nil || *q.Partition == d.Partition) && (q.Claim == (epoch.ClaimID{}) || q.Claim == d.Claim) &&
		(len(q.Kinds) == 0 || slices.Contains(q.Kinds, d.Kind)) && (q.Before == 0 || d.ID < q.Before) &&
		(q.Until.IsZero() || !d.At.After(q.Until))
}

// DeadLetter is a message that was put aside.
type DeadLetter struct {
	ID      int64
	Message epoch.Message
	Epoch   epoch.Epoch // under which it was put aside
	Error   string
	At      time.Time // when, by the sink's database

	// Request counts the requests for its replay, and Requested says that the last
	// one is not carried out yet: by RequestedBy, at RequestedAt.
	Request     int64
	Requested   bool
	RequestedBy string
	RequestedAt time.Time

	// ReplayError is why the last replay failed, at ReplayFailedAt.
	ReplayError    string
	ReplayFailedAt time.Time
}

// DeadLetterQuery selects dead letters. The zero query selects the first of all.
type DeadLetterQuery struct {
	Filter
	Number    *int32 // of the partition; nil: any
	Requested bool   // only those whose replay is requested
	After     int64  // those with a higher ID only
	Limit     int    // zero: DefaultLimit
}

// Selects reports whether q, without its limit, selects l.
func (q DeadLetterQuery) Selects(l DeadLetter) bool {
	p := l.Message.Partition
	return l.ID > q.After && (q.Group == "" || q.Group == p.Group) && (q.Topic == "" || q.Topic == p.Topic) &&
		(q.Number == nil || *q.Number == p.Number) && (l.Requested || !q.Requested)
}

// DeadLetterKind is what an operator does with a dead letter.
type DeadLetterKind string

const (
	// Replay asks for it to be given to the application's handler again. The owner of
	// the partition does it within seconds, in a transaction with its deletion. If
	// that fails it stays a dead letter, with the reason.
	Replay DeadLetterKind = "replay"

	// Withdraw takes a request for a replay back.
	Withdraw DeadLetterKind = "withdraw"

	// Discard deletes it.
	Discard DeadLetterKind = "discard"
)

// DeadLetterAct is what an operator does with a dead letter.
type DeadLetterAct struct {
	Kind DeadLetterKind

	// Seen is the dead letter that the act was decided on. If its requests are
	// others by now, the act is refused with [ErrDeadLetterChanged].
	Seen DeadLetter

	// By is who does it, and Reason why, as in [epoch.Act].
	By, Reason, TraceID string
}

// Check returns an error that matches [epoch.ErrAct] if no dead letter could take the act.
func (a DeadLetterAct) Check() error {
	switch a.Kind {
	case Replay, Withdraw, Discard:
	default:
		return fmt.Errorf("%w: %q; want %s, %s or %s", epoch.ErrAct, a.Kind, Replay, Withdraw, Discard)
	}
	return epoch.CheckWho(a.By, a.Reason, a.TraceID)
}

// Done returns l, which is there now, as it is once an operator has done a; a discarded one
// stays as it was. The time of a request is the sink's to set.
func (a DeadLetterAct) Done(l DeadLetter) (DeadLetter, error) {
	switch {
	case l.ID != a.Seen.ID || l.Request != a.Seen.Request || l.Requested != a.Seen.Requested:
		return l, ErrDeadLetterChanged
	case a.Kind == Replay && l.Requested:
		return l, fmt.Errorf("%w: its replay is requested already, by %s", epoch.ErrNothingToDo, l.RequestedBy)
	case a.Kind == Withdraw && !l.Requested:
		return l, fmt.Errorf("%w: its replay is not requested", epoch.ErrNothingToDo)
	case a.Kind == Replay:
		l.Request, l.Requested, l.RequestedBy = l.Request+1, true, a.By
	case a.Kind == Withdraw:
		l.Requested = false
	}
	return l, nil
}

// Decided is the entry of the audit log for a, of l. f is the fence of its partition,
// as far as there is one.
func (a DeadLetterAct) Decided(l DeadLetter, f epoch.Fence) epoch.Decision {
	kind := epoch.DecidedDiscard
	switch a.Kind {
	case Replay:
		kind = epoch.DecidedReplayRequest
	case Withdraw:
		kind = epoch.DecidedReplayWithdraw
	case Discard:
	}
	return epoch.Decision{
		Kind: kind, Partition: l.Message.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: l.Message.Offset, To: l.Message.Offset, By: a.By, TraceID: a.TraceID,
		Reason: fmt.Sprintf("dead letter %d: %s", l.ID, a.Reason),
	}
}

var (
	// ErrNoDeadLetter: there is none with that ID: it was replayed, discarded, or
	// never was.
	ErrNoDeadLetter = errors.New("no such dead letter")

	// ErrDeadLetterChanged: its replay was requested, withdrawn or tried since it was
	// looked at. Look again, and decide again.
	ErrDeadLetterChanged = errors.New("the dead letter has changed since it was looked at")
)
