package operate

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what operators and package schedule share about jobs: positions that are times, and
// the request for a run. Package schedule decides when a job runs.

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
