package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file plans what an operator asks for, and refuses a position that is not in the log. carryout.go carries a plan out. The command epochfence and
// the status page parse the operator's words, and show the plan and its outcome.

// Request is what an operator asks for.
type Request struct {
	Kind       ActKind
	By, Reason string // may be empty in a plan that is only shown

	// To is the new position for ActRewind, ActSkip and ActRebase, or nil.
	To *Target

	// Log and Source are the log and the lease issuer that ActRebase accepts. Both are those that the
	// broker has now if both are empty.
	Log, Source string
}

// Target is a position in the words of an operator.
type Target struct {
	Word     string // "start", "end", or empty
	Offset   epoch.Offset
	Relative bool      // Offset counts from the position
	At       time.Time // the first message at this time or later, or zero
}

// ParseTarget returns the target that is written as start, end, N, +N, -N or @TIME. It calls at for TIME.
func ParseTarget(s string, at func(string) (time.Time, error)) (t Target, err error) {
	if s == "start" || s == "end" {
		t.Word = s
		return t, nil
	}
	if when, ok := strings.CutPrefix(s, "@"); ok {
		t.At, err = at(when)
		return t, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return t, wrongPlan("%q is no position; want start, end, an offset, +N, -N or @TIME", s)
	}
	t.Offset, t.Relative = epoch.Offset(n), strings.ContainsAny(s[:1], "+-")
	return t, nil
}

// Extent is what a broker knows of the log of a partition.
type Extent struct {
	Log, Source string       // the present log and lease issuer; empty if not known
	Begin, End  epoch.Offset // of the first message, and of the next one to be written

	Lag      int64  // messages from the fence's position to the end
	Unfenced string // which member of the group has the partition, if that has not claimed it
}

// Planner plans operator actions. The zero Planner knows no log: it compares no position with a log, and
// refuses start, end and times, except those of jobs.
type Planner struct {
	// Extent returns the extent of the log of a fence. It may be nil.
	Extent func(ctx context.Context, f epoch.Fence) (Extent, error)

	// At returns the offset of the first message at a time or later. It may be nil.
	At func(ctx context.Context, f epoch.Fence, at time.Time) (epoch.Offset, error)
}

// Plan is an action on a partition as it was read. Nothing is done before [Plan.CarryOut].
type Plan struct {
	Act    Act
	Word   string // "start", "end" or "now" if it names the position, or empty
	Effect string // what the action does, and which messages are applied again or never

	// Nothing is why there is nothing to do, or empty.
	Nothing string
}

// planError is an [ErrAct] with a text of its own.
type planError struct{ error }

func (planError) Is(target error) bool { return target == ErrAct }

func (e planError) Unwrap() error { return e.error }

func wrongPlan(format string, args ...any) error { return planError{fmt.Errorf(format, args...)} }

// Plan returns the plan of r for a fence that was just read. It returns an error that matches [ErrAct] if r
// makes no sense for the fence.
func (pl Planner) Plan(ctx context.Context, f epoch.Fence, r Request) (Plan, error) {
	p := Plan{Act: NewAct(r.Kind, f, r.By, r.Reason)}
	var err error
	switch {
	case r.Kind == ActRun:
		err = p.run()
	case r.Kind == ActRebase:
		err = pl.rebase(ctx, &p, r)
	case r.Kind == ActRewind || r.Kind == ActSkip:
		if r.To == nil {
			return p, wrongPlan("%s: say where to", f.Partition)
		}
		if err = pl.aim(ctx, &p, f, *r.To); err == nil && p.Act.To.Offset == f.Next && f.Epoch > 0 && !p.Act.Beginning {
			p.Nothing = "it is there"
		}
	case r.To != nil:
		err = wrongPlan("%s: %s sets no position", f.Partition, r.Kind)
	case r.Kind == ActPause:
		p.Effect = "takes no claim until it is resumed"
	case r.Kind == ActResume:
		p.Effect = "takes claims again; it continues at offset " + FormatOffset(f.Log, f.Next)
		if f.Log == JobLog {
			p.Effect = "takes claims again; it continues at position " + FormatOffset(f.Log, f.Next)
		}
	case r.Kind == ActEvict:
		p.Effect = "the claim of " + f.Owner + " ends"
	}
	p.Nothing = cmp.Or(p.Nothing, p.Act.nothing(f))
	return p, err
}

func (p *Plan) run() error {
	a, err := NewRun(p.Act.Seen, p.Act.By, p.Act.Reason)
	if errors.Is(err, ErrNothingToDo) {
		p.Nothing, err = "a run was requested and has not begun", nil
	}
	p.Act.To, p.Word, p.Effect = a.To, "now", "the owner of the job runs it once, beside its ticks"
	return err
}

func (pl Planner) rebase(ctx context.Context, p *Plan, r Request) error {
	f := p.Act.Seen
	if r.To != nil && r.To.Relative {
		return wrongPlan("%+d counts from the position in the old log; the new log has other offsets: give start, end, an offset or @TIME", r.To.Offset)
	}
	log, source := r.Log, r.Source
	if log == "" && source == "" && pl.Extent != nil {
		e, err := pl.Extent(ctx, f)
		if err != nil {
			return err
		}
		log, source = e.Log, e.Source
	}
	if log == "" && source == "" {
		return wrongPlan("%s: name the log or the lease issuer to accept", f.Partition)
	}
	if log == f.Log {
		log = ""
	}
	if source == f.Source {
		source = ""
	}
	p.Act.Log, p.Act.Source = log, source
	var effects []string
	now := f
	switch {
	case log == "" && source == "":
		p.Nothing = "the log and the issuer of leases are those of the fence"
		return nil
	case log != "" && r.To == nil:
		return wrongPlan("%s: log %s counts other offsets than %s: say where to continue in it", f.Partition, log, f.Log)
	case log != "":
		now.Log = log
		effects = append(effects, "log "+log+" is accepted")
	}
	if source != "" {
		effects = append(effects, "lease issuer "+source+" is accepted")
	}
	if r.To != nil {
		if err := pl.aim(ctx, p, now, *r.To); err != nil {
			return err
		}
		if log != "" { // positions in two logs cannot be compared
			p.Effect = "it continues at offset " + strconv.FormatInt(int64(p.Act.To.Offset), 10)
		}
		effects = append(effects, p.Effect)
	}
	p.Effect = strings.Join(effects, "; ")
	return nil
}

// aim sets the position of the plan. f is the fence with the log in which t is a position.
func (pl Planner) aim(ctx context.Context, p *Plan, f epoch.Fence, t Target) error {
	if f.Log == JobLog {
		return p.aimAtTime(f, t)
	}
	e, err := Extent{}, wrongPlan("%s: it is not known where the log begins and ends; say an offset", f.Partition)
	if pl.Extent != nil {
		e, err = pl.Extent(ctx, f)
	}
	if err == nil && e.Log != "" && e.Log != f.Log {
		return fmt.Errorf("%s: the fence counts the offsets of log %s, and now there is log %s: see epochfence rebase", f.Partition, f.Log, e.Log)
	}
	known := err == nil && (e.Log != "" || f.Log == p.Act.Seen.Log)
	to := t.Offset
	switch {
	case t.Relative:
		to += f.Next
	case t.Word == "" && t.At.IsZero():
	case err != nil:
		return err
	case t.Word == "start":
		to = e.Begin
	case t.Word == "end":
		to = e.End
	case pl.At == nil:
		return wrongPlan("%s: it is not known which messages are from which time; say an offset", f.Partition)
	default:
		if to, err = pl.At(ctx, f, t.At); err != nil {
			return err
		}
	}
	switch {
	case known && (to < e.Begin || to > e.End):
		return wrongPlan("%s: offset %d is not in the log, which has [%d, %d)", f.Partition, to, e.Begin, e.End)
	case to < 0:
		return wrongPlan("%s: offset %d is below 0; say where to continue as an offset", f.Partition, to)
	}
	p.Act.To, p.Act.Beginning, p.Word = &epoch.Position{Offset: to, Mark: epoch.NoMark}, t.Word == "start", t.Word
	p.Effect = moved(f.Next, to)
	if !known {
		p.Effect += " (not compared with the log)"
	}
	return nil
}

// aimAtTime is aim for a job, whose positions are times.
func (p *Plan) aimAtTime(f epoch.Fence, t Target) error {
	to := t.Offset
	switch {
	case t.Word == "start":
		return wrongPlan("%s: a job has no beginning; say from which time on", f.Partition)
	case t.Word == "end":
		to = JobOffset(time.Now())
	case !t.At.IsZero():
		to = JobOffset(t.At)
	case t.Relative:
		to += f.Next
	}
	if to < 0 {
		return wrongPlan("%s: offset %d is below 0", f.Partition, to)
	}
	at, _ := JobTime(to)
	p.Act.To, p.Word = &epoch.Position{Offset: to, Mark: epoch.NoMark}, t.Word
	p.Effect = "continues with its ticks from " + at.Format(time.RFC3339) + " on; its CatchUp says which of them are run"
	if to > f.Next {
		p.Effect = "the ticks before " + at.Format(time.RFC3339) + " are left out"
	}
	return nil
}

func moved(from, to epoch.Offset) string {
	switch {
	case to < from:
		return offsets(to, from-1, "applied again")
	case to > from:
		return offsets(from, to-1, "never applied")
	default:
		return "the position stays"
	}
}

func offsets(first, last epoch.Offset, what string) string {
	if first == last {
		return fmt.Sprintf("offset %d is %s", first, what)
	}
	return fmt.Sprintf("offsets %d to %d are %s", first, last, what)
}

// numbered reports whether the plan names its position by an offset. Then the operator also decided whether
// the partition moves back or forward.
func (p Plan) numbered() bool { return p.Act.To != nil && p.Word == "" }

// Grounds returns what a confirmation of the plan compares: the claim, the target, and the direction of the
// move. It leaves out the present position, except for a skip: a working owner moves it meanwhile.
func (p Plan) Grounds() string {
	f, a, goal := p.Act.Seen, p.Act, p.Word
	if p.numbered() {
		goal = strconv.FormatInt(int64(a.To.Offset), 10)
	}
	s := fmt.Sprintf("%s %s %d %s to %s, %q, %q, %t", a.Kind, f.Partition, f.Epoch, f.Claim, goal, a.Log, a.Source, p.Nothing != "")
	if p.numbered() {
		s += strconv.Itoa(cmp.Compare(a.To.Offset, f.Next))
	}
	if a.Kind == ActSkip {
		s += fmt.Sprintf(" from %d", f.Next)
	}
	return s
}
