package operate

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what an operator action does to a fence, and when it is refused (Apply).
// plan.go decides which action an operator's request becomes, and carryout.go sends it to the sink,
// which applies it.

// ActKind is the kind of an operator action on a partition.
type ActKind string

const (
	// ActRewind sets the position. Backward, messages are applied again. Forward, the messages in
	// between are never applied.
	ActRewind ActKind = "rewind"

	// ActSkip moves the position forward, past messages that must not be applied.
	ActSkip ActKind = "skip"

	// ActPause makes the fence refuse claims until ActResume.
	ActPause ActKind = "pause"

	// ActResume ends an ActPause.
	ActResume ActKind = "resume"

	// ActEvict replaces the claim. The owner claims again if its source still confirms the
	// lease.
	ActEvict ActKind = "evict"

	// ActRebase accepts another log or another issuer of leases. It resolves [epoch.ErrLogChanged]
	// and [epoch.ErrForeignLease].
	ActRebase ActKind = "rebase"

	// ActRun requests a run of a job of package schedule, beside its ticks. Make it with
	// [NewRun].
	ActRun ActKind = "run"
)

// Act is an operator action on a partition. It is a claim with the next epoch and a random id of
// its own, so it fences a live owner instead of racing with it. The owner's next transaction is
// refused as stale. The owner then claims again and continues from the position that the act has
// set. The group keeps running.
type Act struct {
	Kind      ActKind
	Partition epoch.Partition

	// Seen is the fence that the operator saw. The act is refused with [epoch.ErrStale] if the
	// fence has another epoch or claim by now. An act that sets the position is refused with
	// [epoch.ErrMoved] if the fence has another position by now.
	Seen epoch.Fence

	// Claim is a random id; see [NewAct]. If the outcome is unknown, look for this id in the audit
	// log.
	Claim epoch.ClaimID

	// By names the operator, and Reason the reason. Both are required, one line of at most
	// 500 bytes. TraceID is optional.
	By, Reason, TraceID string

	// At is the time by the sink's clock. The sink sets it.
	At time.Time

	// To is the new position for ActRewind, ActSkip, ActRebase and ActRun, and nil for the other
	// kinds. An ActRebase that keeps the log may leave it nil to keep the position. The mark may be
	// [epoch.NoMark], except for ActRun, whose mark is the request. To of an ActRun is less than a
	// second after the position that was seen, and not before it.
	To *epoch.Position

	// Beginning says that To is the beginning of the log. If retention passes To before a message
	// is applied, the partition begins at the new beginning of the log.
	Beginning bool

	// Log and Source are the log and issuer that ActRebase accepts. An empty string keeps the
	// fence's value.
	Log, Source string
}

// NewAct returns an act with a random id on a fence that was just read.
func NewAct(kind ActKind, seen epoch.Fence, by, reason string) Act {
	return Act{Kind: kind, Partition: seen.Partition, Seen: seen, Claim: epoch.NewClaimID(), By: by, Reason: reason}
}

// ErrAct is returned for an act whose fields are wrong for any fence.
var ErrAct = errors.New("invalid act")

// ErrNothingToDo is returned when the act would change nothing: a pause of a paused partition, a resume
// of a partition that is not paused, an act without a position on a partition that was never claimed, a
// second request of a replay or a run, or the withdrawal of a replay that is not requested.
var ErrNothingToDo = errors.New("nothing to do")

// RedirectLog is the prefix of the Log of a redirect row of package shardsink. The shard's number
// follows the prefix. A redirect row is a fence that only says which database has the partition.
// No process claims it, and no act applies to it. Databases store the prefix. It must not change.
const RedirectLog = "epochfence/shardsink: not in this database but in shard "

// Owner returns the owner that the fence has after the act.
func (a Act) Owner() string { return epoch.ReservedOwner + a.By }

// OperatorOf returns the operator in the Owner of a fence that an act has claimed. It returns an
// empty string for the Owner of a process.
func OperatorOf(owner string) string {
	by, acted := strings.CutPrefix(owner, epoch.ReservedOwner)
	if !acted {
		return ""
	}
	return by
}

// Moves reports whether the act sets the position.
func (a Act) Moves() bool { return a.To != nil }

// Check returns an error that matches [ErrAct] if no fence could take the act.
func (a Act) Check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("operate: %s %s: %w: "+format, append([]any{a.Kind, a.Partition, ErrAct}, args...)...)
	}
	if err := CheckWho(a.By, a.Reason, a.TraceID); err != nil {
		return fmt.Errorf("operate: %s %s: %w", a.Kind, a.Partition, err)
	}
	switch {
	case a.Seen.Partition != a.Partition:
		return wrong("after a look at the fence of %s", a.Seen.Partition)
	case a.Claim == (epoch.ClaimID{}):
		return wrong("it has no claim id; make it with NewAct")
	case a.To != nil && a.To.Offset < 0:
		return wrong("to offset %d; want no negative offset", a.To.Offset)
	case a.Beginning && a.To == nil:
		return wrong("to the beginning, without an offset")
	case (a.Log != "" || a.Source != "") && a.Kind != ActRebase:
		return wrong("only %s sets a log or a lease issuer", ActRebase)
	}
	return a.checkKind(wrong)
}

// checkKind checks what differs from kind to kind.
func (a Act) checkKind(wrong func(format string, args ...any) error) error {
	switch a.Kind {
	case ActRewind, ActSkip:
		if a.To == nil {
			return wrong("say where to")
		}
		if a.Kind == ActSkip && (a.To.Offset <= a.Seen.Next || a.Beginning) {
			return wrong("from offset %d to %d; want one above it", a.Seen.Next, a.To.Offset)
		}
	case ActRebase:
		if a.Log == "" && a.Source == "" {
			return wrong("name the log or the lease issuer to accept")
		}
		if a.Log != "" && a.Log != a.Seen.Log && a.To == nil {
			return wrong("to log %q, which counts other offsets: say where to continue in it", a.Log)
		}
	case ActRun:
		if a.Seen.Log != JobLog {
			return wrong("it is no job, but a partition of log %q", a.Seen.Log)
		}
		if a.To == nil || a.Beginning || a.To.Mark == epoch.NoMark || a.To.Offset < a.Seen.Next || a.To.Offset-a.Seen.Next >= JobSecond {
			return wrong("it requests no run at the job's position; make it with operate.NewRun")
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

// CheckWho returns an error that matches [ErrAct] if by, reason or traceID is not valid in an
// [Act].
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

const maxLine = 500 // bytes

func line(s string) bool {
	return strings.TrimSpace(s) != "" && len(s) <= maxLine && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// Apply returns f after the act. It first compares f with a.Seen, as [epoch.Fences.Claim] does. A
// fence that was never claimed accepts only acts that set its position: its first claim takes over
// the position that the group has committed to the source, and after an act there is no first claim.
func (a Act) Apply(f epoch.Fence) (epoch.Fence, error) {
	if err := a.Check(); err != nil {
		return f, err
	}
	switch {
	case f.Partition != a.Partition:
		return f, fmt.Errorf("operate: %s %s: the fence is of %s", a.Kind, a.Partition, f.Partition)
	case strings.HasPrefix(f.Log, RedirectLog):
		return f, fmt.Errorf("operate: %s %s: %w: act on it in shard %s", a.Kind, a.Partition, epoch.ErrElsewhere, strings.TrimPrefix(f.Log, RedirectLog))
	case f.Epoch != a.Seen.Epoch || f.Claim != a.Seen.Claim:
		return f, &epoch.StaleError{Partition: a.Partition, Ours: a.Claim, Held: f}
	case a.Claim == f.Claim:
		return f, fmt.Errorf("operate: %s %s: claim id %s is not a fresh one", a.Kind, a.Partition, a.Claim)
	case a.Moves() && f.Next != a.Seen.Next:
		return f, &epoch.MovedError{Partition: a.Partition, From: a.Seen.Next, Next: f.Next}
	case f.Epoch == math.MaxInt64:
		return f, fmt.Errorf("operate: %s %s: epochs are used up at %d", a.Kind, a.Partition, f.Epoch)
	}
	if why := a.nothing(f); why != "" {
		return f, fmt.Errorf("operate: %s %s: %w: %s", a.Kind, a.Partition, ErrNothingToDo, why)
	}
	f.Epoch++
	f.Claim = a.Claim
	f.Owner = a.Owner()
	if a.Moves() {
		f.Next, f.Mark, f.Applied = a.To.Offset, a.To.Mark, !a.Beginning
		if a.Kind != ActSkip {
			f.SetUnder = f.Epoch
		}
	}
	switch a.Kind {
	case ActPause:
		f.Pause = epoch.PauseState{Mode: epoch.Paused, By: a.By, Reason: a.Reason, Since: a.At}
	case ActResume:
		f.Pause = epoch.PauseState{}
	case ActRebase:
		if a.Log != "" {
			f.Log = a.Log
		}
		if a.Source != "" {
			f.Source = a.Source
		}
	case ActRewind, ActSkip, ActEvict, ActRun:
	}
	return f, nil
}

// nothing returns why a would change nothing of f, or an empty string.
func (a Act) nothing(f epoch.Fence) string {
	switch {
	case f.Epoch == 0 && !a.Moves():
		return "it was never claimed; start a consumer, or set its position"
	case a.Kind == ActPause && f.Pause.Mode == epoch.Paused:
		return fmt.Sprintf("paused since %s, by %s: %s", f.Pause.Since.UTC().Format(time.RFC3339), f.Pause.By, f.Pause.Reason)
	case a.Kind == ActResume && f.Pause.Mode == epoch.Running:
		return "it is not paused"
	}
	return ""
}

// ApplyTo applies the act to its partition's fence in fs, and returns the new fence.
func (a Act) ApplyTo(fs epoch.Fences) (epoch.Fence, error) {
	f, err := fs.Read(a.Partition)
	if err != nil {
		return epoch.Fence{}, err
	}
	if f, err = a.Apply(f); err != nil {
		return epoch.Fence{}, err
	}
	fs[a.Partition] = f
	return f, nil
}

// Decided returns the audit log entry for a, which changed the fence from before to after.
func (a Act) Decided(before, after epoch.Fence) Decision {
	return swapped(DecisionKind(a.Kind), before, after, a.Reason, a.By, a.TraceID)
}

// Claimed returns the audit log entry for a claim that changed the fence from before to after.
func Claimed(before, after epoch.Fence, traceID string) Decision {
	return swapped(DecidedClaim, before, after, "", "", traceID)
}

func swapped(kind DecisionKind, before, after epoch.Fence, reason, by, traceID string) Decision {
	from := before.Next
	if before.Epoch == 0 {
		from = -1
	}
	return Decision{
		Kind: kind, Partition: after.Partition, Epoch: after.Epoch, Claim: after.Claim, Owner: after.Owner,
		From: from, To: after.Next, Reason: reason, By: by, TraceID: traceID,
	}
}
