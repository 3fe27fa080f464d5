package schedule

import (
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// ErrAtWork is returned by [Request] while the job is between two steps of a tick.
var ErrAtWork = errors.New("the job is at work")

// Request returns the operator action that runs a job now, beside its ticks. f is the fence of the job,
// as [epoch.Sink.Fence] returns it. Carry the action out with [operate.Operator]. The audit log has by
// and reason.
//
// The run uses the offset of the job's position. A tick at that offset is replaced. If a transaction of
// Do is open, it is rolled back, and runs again after the requested run. A request between two steps is
// refused with [ErrAtWork], and a second one with [operate.ErrNothingToDo].
func Request(f epoch.Fence, by, reason string) (operate.Act, error) {
	wrong := func(err error, format string, args ...any) (operate.Act, error) {
		return operate.Act{}, fmt.Errorf("schedule: request a run of %s: %w: %s", f.Partition, err, fmt.Sprintf(format, args...))
	}
	at := positionOf(f.Next, f.Mark)
	switch {
	case f.Log != epoch.ScheduleLog:
		return wrong(operate.ErrAct, "it is no job, but a partition of log %q", f.Log)
	case at.step == 0 && f.Mark == requested:
		return wrong(operate.ErrNothingToDo, "it was requested before and has not run yet")
	case at.step > 0:
		return wrong(ErrAtWork, "%d steps of %s are done; wait for the others", at.step, at.at.Format(time.RFC3339))
	}
	a := operate.NewAct(operate.ActRun, f, by, reason)
	a.To = &epoch.Position{Offset: at.offset(), Mark: requested}
	return a, nil
}
