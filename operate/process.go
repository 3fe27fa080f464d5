package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides, from signs of life, whether a process is alive and which fences are its own, and
// answers for all of a sink which process owns a fence. Consumers write the signs, and no claim depends
// on them. At the end is what operators and package schedule share about jobs.

// Process is the sign of life that a consumer records in its sink. Operators and monitoring use it
// to see whether the owner of a partition is alive. Nothing else depends on it.
//
// A live process runs and reaches the sink. Problems says what else is wrong.
type Process struct {
	// Run is a random id of one call of consumer.Run.
	Run string

	Group string

	// Name is the prefix of the owners of its leases; see [Process.Owns].
	Name string

	Host    string // in Kubernetes, the name of the pod
	PID     int
	Version string // of the program's main module, from its build information

	// Problems has a line for each problem that the process itself reports: a call that hangs, which
	// begins with the partition, a colon and a space, and that it is no member of its group.
	Problems string

	// Every is the time between two signs of life.
	Every time.Duration

	// Since and Seen are the times of the first and the last sign of life. Now is the time of the
	// read. All three are times by the sink's clock.
	Since, Seen, Now time.Time
}

// Alive reports whether the last sign of life is at most 3×Every old.
func (p Process) Alive() bool { return p.Now.Sub(p.Seen) <= 3*p.Every }

// Hangs returns the line of Problems about a call that hangs under the claim in f, or the empty
// string. The process has then given the partition up.
func (p Process) Hangs(f epoch.Fence) string {
	for line := range strings.Lines(p.Problems) {
		if strings.HasPrefix(line, f.Partition.String()+": ") && strings.Contains(line, fmt.Sprintf(", epoch %d,", f.Epoch)) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// Owns reports whether owner, the Owner of a fence, names the process.
func (p Process) Owns(owner string) bool {
	return p.Name != "" && (owner == p.Name || strings.HasPrefix(owner, p.Name+"/"))
}

// Lives are processes, as [Operator] lists them.
type Lives []Process

// Alive returns the number of live processes of the group.
func (l Lives) Alive(group string) (n int) {
	for _, p := range l {
		if p.Group == group && p.Alive() {
			n++
		}
	}
	return n
}

// Last returns the process of the group that was seen last, if there is one.
func (l Lives) Last(group string) (Process, bool) {
	return l.last(func(p Process) bool { return p.Group == group })
}

// Owner returns the process that the fence names as its owner. If several had that name, it returns
// the one that was seen last. It returns false if the owner has shut down in good order.
func (l Lives) Owner(f epoch.Fence) (Process, bool) {
	return l.last(func(p Process) bool { return p.Group == f.Partition.Group && p.Owns(f.Owner) })
}

func (l Lives) last(is func(Process) bool) (found Process, ok bool) {
	for _, p := range l {
		if is(p) && (!ok || p.Seen.After(found.Seen)) {
			found, ok = p, true
		}
	}
	return found, ok
}

// SortProcesses sorts ps as [Operator] lists them.
func SortProcesses(ps []Process) {
	slices.SortFunc(ps, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name), a.Since.Compare(b.Since), cmp.Compare(a.Run, b.Run))
	})
}

// Peer is a process of a group, as the others see it. Peers notice within a second that one of them has died. No claim
// depends on it: who is suspected wrongly loses time, and no effect. [Process] is for operators, and slower.
type Peer struct {
	Group string
	Run   string // as in [Process]
	Name  string // as in [Process]
	Host  string

	// Member is its id in the group, by which its source can be asked to remove it. It is empty while it is
	// no member.
	Member string

	// Patience is how long the others wait for a sign before they suspect it. Nobody suspects it if it is 0.
	Patience time.Duration

	// What follows is what a [Vigil] sees of others.

	// Silent is the time since its last sign, by the clock of what both sign to.
	Silent time.Duration

	// Gone says that its connection to that has ended, without a goodbye: it has died, or signs again soon.
	Gone bool

	// Suspected is the member id under which it was suspected last, and By is whose suspicion that was.
	Suspected, By string
}

// Look is what one process sees of its group at one moment.
type Look struct {
	// Peers are the others that this process looks after, and all that were suspected in the last minute, this
	// process included: it raises its patience then. In a large group each process looks after a few.
	Peers []Peer

	// Members are the processes of the group with a Member, this one included, that are not suspected. Silent
	// are those of them that are silent for longer than their patience, or gone.
	Members, Silent int
}

// ErrNoWatch is returned by [Watch.Attend] if there is nothing to sign to, and will not be: what is behind the
// Watch is older, or does not permit it. [Vigil.Suspect] returns it if that alone is not permitted.
var ErrNoWatch = errors.New("the processes of a group cannot see each other here")

// Watch is implemented by sinks, and by sources, to which the processes of a group can sign and which show
// each one the signs of others.
type Watch interface {
	// Attend opens a connection of its own, behind which no work of handlers waits, and gives the first sign.
	Attend(ctx context.Context, self Peer) (Vigil, error)
}

// Vigil is one process's part in a [Watch]. After an error of a method it is closed and opened anew. Its
// methods are called by one goroutine.
type Vigil interface {
	// Look gives a sign of self and returns what there is to see.
	Look(ctx context.Context, self Peer) (Look, error)

	// Suspect records that by suspects p under its member id, and reports whether p is to be removed: not if
	// p has signed since it was seen, or somebody of the group was suspected within the last second.
	Suspect(ctx context.Context, by, p Peer) (bool, error)

	// Close says goodbye, if ctx has not ended, and closes the connection.
	Close(ctx context.Context)
}

// JobLog is the Log of the fence of a job of package schedule. Databases store it. It must not
// change.
const JobLog = "epochfence/schedule"

// JobSecond is the number of offsets of a job of package schedule in a second. The offset of a run is its
// scheduled Unix time in seconds times JobSecond. The offsets after that, within the second, count the
// steps of a job that commits in several transactions.
const JobSecond epoch.Offset = 1_000_000

// RunRequested is the mark of a job's position at which an operator has requested a run.
const RunRequested epoch.Mark = 1

// ErrAtWork is returned by [NewRun] while the job is between two steps of a tick.
var ErrAtWork = errors.New("the job is at work")

// JobOffset returns the position of a job whose ticks before a time are done.
func JobOffset(at time.Time) epoch.Offset { return epoch.Offset(at.Unix()) * JobSecond }

// JobTime is the inverse of [JobOffset]. step is the number of committed steps of the tick at that time.
func JobTime(o epoch.Offset) (at time.Time, step int) {
	return time.Unix(int64(o/JobSecond), 0).UTC(), int(o % JobSecond)
}

// FormatOffset returns an offset of a log for operators: a number, or for a job of package schedule the
// time in UTC, with the number of committed steps of that tick if there are any.
func FormatOffset(log string, o epoch.Offset) string {
	if log != JobLog {
		return strconv.FormatInt(int64(o), 10)
	}
	at, step := JobTime(o)
	if step > 0 {
		return fmt.Sprintf("%s, step %d", at.Format(time.RFC3339), step)
	}
	return at.Format(time.RFC3339)
}

// NewRun returns the operator action that runs a job of package schedule now, beside its ticks. f is the
// job's fence, as [epoch.FenceOf] returns it. Carry it out with [Operator]. The audit log has by and reason.
//
// The run uses the offset of the job's position. A tick at that offset is replaced. A transaction of Do or
// of a first step that is open is rolled back, and runs again after the requested run. Items of a store
// that it has changed are changed again. A request between two steps is refused with [ErrAtWork], and a
// second one with [ErrNothingToDo].
func NewRun(f epoch.Fence, by, reason string) (Act, error) {
	wrong := func(err error, format string, args ...any) (Act, error) {
		return Act{}, fmt.Errorf("operate: request a run of %s: %w: %s", f.Partition, err, fmt.Sprintf(format, args...))
	}
	at, step := JobTime(f.Next)
	switch {
	case f.Log != JobLog:
		return wrong(ErrAct, "it is no job, but a partition of log %q", f.Log)
	case step == 0 && f.Mark == RunRequested:
		return wrong(ErrNothingToDo, "it was requested before and has not run yet")
	case step > 0 && f.Mark == epoch.NoMark: // an operator has left the rest of the tick out
		at = at.Add(time.Second)
	case step > 0:
		return wrong(ErrAtWork, "%d steps of %s are done; wait for the others", step, at.Format(time.RFC3339))
	}
	a := NewAct(ActRun, f, by, reason)
	a.To = &epoch.Position{Offset: JobOffset(at), Mark: RunRequested}
	return a, nil
}
