package rebuild

import (
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
)

// The points of a build at which incidents strike.
const (
	inTheMiddle   show.Point = "in the middle of it"
	beforePointer show.Point = "before its pointer"
	afterPointer  show.Point = "after its pointer" // and before the commit
)

// subject names a step of a build, as it is displayed.
func subject(job string, tick time.Time, step int) string {
	return fmt.Sprintf("%s %s/%d", job, tick.UTC().Format(time.RFC3339), step)
}

// place reads a [subject].
func place(subject string) (job string, tick time.Time, err error) {
	var at string
	if _, err := fmt.Sscanf(subject, "%s %s", &job, &at); err != nil {
		return "", tick, fmt.Errorf("%q is no step: %w", subject, err)
	}
	at, _, _ = strings.Cut(at, "/")
	tick, err = time.Parse(time.RFC3339, at)
	return job, tick, err
}

// middle is the step at which a build is half done.
func (c config) middle() int { return c.Parts / 2 }

// scene has the points of one transaction of the fenced column.
func (c config) scene(a epoch.Advance) show.Scene {
	t := schedule.TickOf(epoch.Message{Partition: a.Partition, Offset: a.From})
	s := show.Scene{Subject: subject(t.Job, t.At, t.Step)}
	switch t.Step {
	case c.middle():
		s.Before, s.Others = inTheMiddle, []show.Point{show.AfterCommit}
	case c.Parts:
		s.Before, s.Written = beforePointer, afterPointer
	}
	return s
}
