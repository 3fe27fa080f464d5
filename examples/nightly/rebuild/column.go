package rebuild

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type column struct {
	*show.Column
	*nightly
	reader *reader
	audit  audit
}

func (n *nightly) Side(c *show.Column) show.Side { return &column{Column: c, nightly: n} }

const tables = `
CREATE TABLE builds (job TEXT NOT NULL, tick INTEGER NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE parts (job TEXT NOT NULL, tick INTEGER NOT NULL, part INTEGER NOT NULL, object TEXT NOT NULL, sum TEXT NOT NULL);
CREATE INDEX builds_tick ON builds (job, tick);
CREATE INDEX parts_tick ON parts (job, tick);`

func (c *column) Prepare(ctx context.Context) error {
	if _, err := c.DB.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	objects := client(c.objects)
	c.reader = &reader{look: usualLook(objects, c.ID, c.parts), jobs: c.jobs, tell: c.Event, last: map[string]reading{}}
	if c.Name == show.Baseline {
		return nil
	}
	pointers, err := openPointers(ctx, objects, c.ID)
	if err != nil {
		return err
	}
	c.reader.look = fencedLook(objects, pointers, c.parts)
	return sqlsink.Migrate(ctx, c.DB.DB, sqlsink.SQLite, sqlsink.Options{})
}

func (c *column) Config(string) any {
	return config{ID: c.ID, Jobs: c.jobs, Every: c.every, TTL: c.ttl, Parts: c.parts, Objects: c.objects, Leases: c.leases, Redis: c.redis}
}

// Play returns once all incidents are over and all ticks until then are built. A reader reads meanwhile.
func (c *column) Play(ctx context.Context) error {
	playing, playingCtx := errgroup.WithContext(ctx)
	reading, stop := context.WithCancel(playingCtx)
	playing.Go(func() error { return c.reader.run(reading) })
	playing.Go(func() error {
		defer stop()
		if err := c.Strike(playingCtx, c.incidents, c.due, func() {}); err != nil {
			return err
		}
		return c.settle(playingCtx)
	})
	return playing.Wait()
}

// Close removes what the pods have left in a store that others use, too.
func (c *column) Close() error {
	if c.Name == show.Baseline {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), show.Preparing)
	defer cancel()
	s, closer, err := c.stores.Open(ctx, c.leases)
	if err != nil {
		return err
	}
	defer closer()
	return stores.Remove(ctx, s, cas.Join(c.ID, ""))
}

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
