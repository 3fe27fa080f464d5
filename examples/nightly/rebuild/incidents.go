package rebuild

import (
	"context"
	"fmt"
	"slices"
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

var (
	freezePoints = []show.Point{inTheMiddle, beforePointer}
	killPoints   = []show.Point{show.AfterCommit, afterPointer}
)

// inTurn returns freezes and kills in turn. Each kind goes through its points in turn.
func inTurn(freezes, kills int) (is []show.Incident) {
	for i := range max(freezes, kills) {
		if i < freezes {
			is = append(is, show.Incident{At: freezePoints[i%len(freezePoints)]})
		}
		if i < kills {
			is = append(is, show.Incident{Kill: true, At: killPoints[i%len(killPoints)]})
		}
	}
	return is
}

// subject names a step of a build, as it is displayed.
func subject(job string, tick time.Time, step int) string {
	return fmt.Sprintf("%s %s/%d", job, tick.UTC().Format(time.RFC3339), step)
}

// place reads a [subject].
func place(subject string) (job string, tick time.Time, err error) {
	job, at, _ := strings.Cut(subject, " ")
	at, _, _ = strings.Cut(at, "/")
	tick, err = time.Parse(time.RFC3339, at)
	return job, tick, err
}

// scene has the points of one step of a build.
func (c config) scene(job string, tick time.Time, step int) show.Scene {
	s := show.Scene{Subject: subject(job, tick, step)}
	switch step {
	case c.Parts / 2:
		s.Before, s.Last = inTheMiddle, show.AfterCommit
	case c.Parts:
		s.Before, s.Written = beforePointer, afterPointer
	}
	return s
}

// transaction is the scene of a transaction of the fenced column.
func (c config) transaction(a epoch.Advance) show.Scene {
	t := schedule.TickOf(epoch.Message{Partition: a.Partition, Offset: a.From})
	return c.scene(t.Job, t.At, t.Step)
}

// Elsewhere reports whether the build of a subject is recorded, or a later one. While a pod is frozen the
// build has to be a later one.
func (c *column) Elsewhere(ctx context.Context, subject string, at show.Point, _ string) (bool, error) {
	job, tick, err := place(subject)
	if err != nil {
		return false, err
	}
	least := tick.Unix()
	if slices.Contains(freezePoints, at) {
		least++
	}
	n, err := c.DB.Count(ctx, `SELECT count(*) FROM builds WHERE job = $1 AND tick >= $2`, job, least)
	return n > 0, err
}

// due spreads the incidents over the builds.
func (c *column) due(ctx context.Context, incident int) error {
	if c.disturb != nil && c.Name == show.Fence {
		c.disturb(ctx, incident)
	}
	want := (incident + 1) * c.ticks / (len(c.incidents) + 1)
	return c.Crew.Poll(ctx, c.patience(), "the builds before an incident", func(ctx context.Context) (bool, error) {
		built, err := c.DB.Count(ctx, `SELECT count(*) FROM builds`)
		return built >= want, err
	})
}

// patience is many times the usual duration of all ticks.
func (c *column) patience() time.Duration { return show.Patience + time.Duration(c.ticks)*c.every }

// settle returns once all jobs have built all ticks until this moment, and enough of them.
func (c *column) settle(ctx context.Context) error {
	due := time.Now().Truncate(c.every) // the last tick
	return c.Crew.Poll(ctx, c.patience(), "the builds of all ticks", func(ctx context.Context) (bool, error) {
		done, ticks := true, 0
		for _, job := range c.jobs {
			first, last, err := c.span(ctx, job)
			if err != nil {
				return false, err
			}
			done = done && !last.Before(due)
			ticks += c.between(first, last)
		}
		return done && ticks >= c.ticks, nil
	})
}

// between counts ticks, with the first and the last.
func (c *column) between(first, last time.Time) int { return int(last.Sub(first)/c.every) + 1 }

// span returns the first and the last tick that are built.
func (c *column) span(ctx context.Context, job string) (first, last time.Time, err error) {
	var from, to int64
	err = c.DB.QueryRowContext(ctx, `SELECT coalesce(min(tick), 0), coalesce(max(tick), 0) FROM builds WHERE job = $1`, job).Scan(&from, &to)
	return time.Unix(from, 0).UTC(), time.Unix(to, 0).UTC(), err
}
