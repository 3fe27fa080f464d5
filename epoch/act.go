package epoch

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ActKind is what an operator has done with a partition.
type ActKind string

const (
	// ActRewind sets the position: back, so that messages are applied again, or
	// forward, so that they never are.
	ActRewind ActKind = "rewind"

	// ActSkip moves the position forward, past messages that shall not be applied.
	ActSkip ActKind = "skip"

	// ActPause has no claim taken until ActResume.
	ActPause ActKind = "pause"

	// ActResume ends an ActPause.
	ActResume ActKind = "resume"

	// ActEvict takes the claim away. The owner claims again if its source still
	// confirms the lease.
	ActEvict ActKind = "evict"

	// ActRebase accepts another log, or another issuer of leases, than the fence
	// has: the remedy for [ErrLogChanged] and [ErrForeignLease].
	ActRebase ActKind = "rebase"
)

// Act is what an operator does with a partition that may have an owner. It is a claim
// like any other, under the next epoch and an id of its own: a live owner is fenced by it,
// not raced. What the owner tries next is refused as stale; it asks its source,
// which confirms the lease, claims again, and continues from where the act has put the
// position. Nobody has to stop the group.
type Act struct {
	Kind      ActKind
	Partition Partition

	// Seen is the fence that the act was decided on. It is refused as [ErrStale] if
	// the fence has another epoch or claim by now, and one that sets the position also
	// as [ErrMoved] if it is elsewhere: look again, and decide again.
	Seen Fence

	// Claim is a fresh id, by which the act is found in the audit log if its
	// outcome is unknown: see [NewAct].
	Claim ClaimID

	// By is who does it and Reason why, both in one line of at most 500 bytes; they
	// are required. TraceID may be empty.
	By, Reason, TraceID string

	// At is when, by the clock of the sink's database: a sink sets it.
	At time.Time

	// To is where ActRewind, ActSkip and ActRebase put the position; nobody else
	// sets it. An ActRebase that leaves it nil leaves the position where it is,
	// which it may if the log stays. The mark may be [NoMark].
	To *Position

	// Beginning says that To is where the log begins, wherever that will be by the
	// time it is read: if retention passes the position before anything is
	// applied, the partition begins above it.
	Beginning bool

	// Log and Source are those that ActRebase accepts. Empty means as before.
	Log, Source string
}

// NewAct makes an act on a fence that was just read, with a fresh id.
func NewAct(kind ActKind, seen Fence, by, reason string) Act {
	return Act{Kind: kind, Partition: seen.Partition, Seen: seen, Claim: NewClaimID(), By: by, Reason: reason}
}

// ErrAct: an act that makes no sense, whatever the fence is: a mistake in its fields.
var ErrAct = errors.New("invalid act")

// ErrNothingToDo: the fence is as the act would have it, or an act of this kind has
// nothing to work on: a partition is paused already, is not paused, or was never claimed.
var ErrNothingToDo = errors.New("nothing to do")

// OperatorPrefix begins the Owner of a fence whose claim is an operator's act.
const OperatorPrefix = "operator "

// Owner is what the fence says of its owner after the act.
func (a Act) Owner() string { return OperatorPrefix + a.By }

// Moves reports whether the act sets the position.
func (a Act) Moves() bool { return a.To != nil }

// Check returns an error that matches [ErrAct] if no fence could take the act.
func (a Act) Check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("epoch: %s %s: %w: "+format, append([]any{a.Kind, a.Partition, ErrAct}, args...)...)
	}
	if err := CheckWho(a.By, a.Reason, a.TraceID); err != nil {
		return fmt.Errorf("epoch: %s %s: %w", a.Kind, a.Partition, err)
	}
	rebases := a.Log != "" || a.Source != ""
	switch {
	case a.Seen.Partition != a.Partition:
		return wrong("after a look at the fence of %s", a.Seen.Partition)
	case a.Claim == (ClaimID{}):
		return wrong("it has no claim id; make it with NewAct")
	case a.To != nil && a.To.Offset < 0:
		return wrong("to offset %d; want no negative offset", a.To.Offset)
	case a.Beginning && a.To == nil:
		return wrong("to the beginning, without an offset")
	case rebases && a.Kind != ActRebase:
		return wrong("only %s sets a log or a lease source", ActRebase)
	}
	switch a.Kind {
	case ActRewind, ActSkip:
		if a.To == nil {
			return wrong("say where to")
		}
		if a.Kind == ActSkip && (a.To.Offset <= a.Seen.Next || a.Beginning) {
			return wrong("from offset %d to %d; want one above it", a.Seen.Next, a.To.Offset)
		}
	case ActRebase:
		if !rebases {
			return wrong("name the log or the lease source to accept")
		}
		if a.Log != "" && a.Log != a.Seen.Log && a.To == nil {
			return wrong("to log %q, which counts other offsets: say where to continue in it", a.Log)
		}
	case ActPause, ActResume, ActEvict:
		if a.To != nil {
			return wrong("it sets no position")
		}
	default:
		return wrong("no such act")
	}
	return nil
}

// CheckWho returns an error that matches [ErrAct] unless it says who acts, and why, as
// [Act] wants it.
func CheckWho(by, reason, traceID string) error {
	switch {
	case !line(by):
		return fmt.Errorf("%w: by %q; say who does it, in one line of at most %d bytes", ErrAct, by, maxLine)
	case !line(reason):
		return fmt.Errorf("%w: reason %q; say why, in one line of at most %d bytes", ErrAct, reason, maxLine)
	case traceID != "" && !line(traceID):
		return fmt.Errorf("%w: trace id %q", ErrAct, traceID)
	default:
		return nil
	}
}

// maxLine bounds what people write, in bytes.
const maxLine = 500

func line(s string) bool {
	return strings.TrimSpace(s) != "" && len(s) <= maxLine && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// Operated returns the fence as it is once an operator has done a. It compares what was
// seen first, as [Fences.Claim] does; a fence that was never claimed takes only acts
// that set its position, since its first claim may have to adopt one.
func (f Fence) Operated(a Act) (Fence, error) {
	if err := a.Check(); err != nil {
		return f, err
	}
	nothing := func(why string) (Fence, error) {
		return f, fmt.Errorf("epoch: %s %s: %w: %s", a.Kind, a.Partition, ErrNothingToDo, why)
	}
	switch {
	case f.Partition != a.Partition:
		return f, fmt.Errorf("epoch: %s %s on the fence of %s", a.Kind, a.Partition, f.Partition)
	case strings.HasPrefix(f.Log, SignpostLog):
		return f, fmt.Errorf("epoch: %s %s: %w: act on it in shard %s", a.Kind, a.Partition, ErrElsewhere, strings.TrimPrefix(f.Log, SignpostLog))
	case f.Epoch != a.Seen.Epoch || f.Claim != a.Seen.Claim:
		return f, &StaleError{Partition: a.Partition, Ours: a.Claim, Held: f}
	case a.Claim == f.Claim:
		return f, fmt.Errorf("epoch: %s %s: claim id %s is not a fresh one", a.Kind, a.Partition, a.Claim)
	case a.Moves() && f.Next != a.Seen.Next:
		return f, &MovedError{Partition: a.Partition, From: a.Seen.Next, Next: f.Next}
	case f.Epoch == 0 && !a.Moves():
		return nothing("it was never claimed; start a consumer, or set its position")
	case f.Epoch == math.MaxInt64:
		return f, fmt.Errorf("epoch: %s %s: epochs are used up at %d", a.Kind, a.Partition, f.Epoch)
	case a.Kind == ActPause && f.Standing.Mode == Paused:
		return nothing(fmt.Sprintf("it is paused since %s, by %s: %s", f.Standing.Since.UTC().Format(time.RFC3339), f.Standing.By, f.Standing.Reason))
	case a.Kind == ActResume && f.Standing.Mode == Running:
		return nothing("it is not paused")
	}
	f.Epoch++
	f.Claim = a.Claim
	f.Owner = a.Owner()
	if a.Moves() {
		f.Next, f.Mark, f.Applied, f.SetUnder = a.To.Offset, a.To.Mark, !a.Beginning, f.Epoch
	}
	switch a.Kind {
	case ActPause:
		f.Standing = Standing{Mode: Paused, By: a.By, Reason: a.Reason, Since: a.At}
	case ActResume:
		f.Standing = Standing{}
	case ActRebase:
		if a.Log != "" {
			f.Log = a.Log
		}
		if a.Source != "" {
			f.Source = a.Source
		}
	case ActRewind, ActSkip, ActEvict:
	}
	return f, nil
}

// Operate does a to the fence of its partition, as [Fence.Operated] says, and returns
// the fence as it is then.
func (fs Fences) Operate(a Act) (Fence, error) {
	f, err := fs.Read(a.Partition)
	if err != nil {
		return Fence{}, err
	}
	if f, err = f.Operated(a); err != nil {
		return Fence{}, err
	}
	fs[a.Partition] = f
	return f, nil
}

// Decided is the entry of the audit log for a, which made after of before.
func (a Act) Decided(before, after Fence) Decision {
	return swapped(DecisionKind(a.Kind), before, after, a.Reason, a.By, a.TraceID)
}

// Decided is the entry of the audit log for c, which made after of before.
func (c Claim) Decided(before, after Fence, traceID string) Decision {
	return swapped(DecidedClaim, before, after, "", "", traceID)
}

func swapped(kind DecisionKind, before, after Fence, reason, by, traceID string) Decision {
	from := before.Next
	if before.Epoch == 0 {
		from = -1
	}
	return Decision{
		Kind: kind, Partition: after.Partition, Epoch: after.Epoch, Claim: after.Claim, Owner: after.Owner,
		From: from, To: after.Next, Reason: reason, By: by, TraceID: traceID,
	}
}
