package rebuild

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/internal/backoff"
	"github.com/epochfence/epochfence/internal/show"
)

var (
	freezes = []show.Point{inTheMiddle, beforePointer}
	kills   = []show.Point{show.AfterCommit, afterPointer}
)

// patience limits each wait. It is many times the usual duration.
const patience = time.Minute

// incidents freezes and kills in turn, and restarts the store of leases meanwhile.
func (c *column) incidents(ctx context.Context) error {
	total, random := c.Freezes+c.Kills, c.random(1)
	done := make(chan struct{}, total) // one for each incident
	playing, ctx := errgroup.WithContext(ctx)
	if c.restarts > 0 && !c.isBaseline() {
		playing.Go(func() error { return c.restartLeases(ctx, total, done) })
	}
	playing.Go(func() error {
		frozen, killed := 0, 0
		for i := range total {
			if err := c.pause(ctx, i, total); err != nil {
				return err
			}
			freeze := killed == c.Kills || frozen < c.Freezes && i%2 == 0
			var line string
			var err error
			if freeze {
				line, err = c.freeze(ctx, c.draw(random, freezes, frozen))
				frozen++
			} else {
				line, err = c.kill(ctx, c.draw(random, kills, killed))
				killed++
			}
			if err != nil {
				return fmt.Errorf("incident %d of %d: %w", i+1, total, err)
			}
			c.board.Event(c.Name, strings.ReplaceAll(line, "worker", "pod"))
			done <- struct{}{}
		}
		return nil
	})
	return playing.Wait()
}

// draw returns the points in turn, or in the chaos at random.
func (c *column) draw(random *rand.Rand, points []show.Point, n int) show.Point {
	if c.chaos {
		n = random.IntN(len(points))
	}
	return points[n%len(points)]
}

// freeze freezes a pod until the other has finished a later build.
func (c *column) freeze(ctx context.Context, at show.Point) (string, error) {
	c.Crew.Watch(c.DB, func(ctx context.Context, subject string, _ int) (bool, error) { return c.built(ctx, subject, ">") })
	return c.Crew.Freeze(ctx, at)
}

// kill kills a pod, and waits until another has finished its build.
func (c *column) kill(ctx context.Context, at show.Point) (string, error) {
	c.Crew.Watch(c.DB, func(ctx context.Context, subject string, _ int) (bool, error) { return c.built(ctx, subject, ">=") })
	return c.Crew.Kill(ctx, at)
}

// built reports whether the build of a subject, or a later one, is recorded.
func (c *column) built(ctx context.Context, subject, than string) (bool, error) {
	job, tick, err := place(subject)
	if err != nil {
		return false, err
	}
	n, err := c.DB.Count(ctx, `SELECT count(*) FROM builds WHERE job = $1 AND tick `+than+` $2`, job, tick.Unix())
	return n > 0, err
}

// pause waits for a build that nothing disturbs before the n-th of so many incidents, from 0. The chaos
// spreads the incidents over its ticks instead.
func (c *column) pause(ctx context.Context, n, total int) error {
	want := n * c.Ticks / total
	if !c.chaos {
		built, err := c.DB.Count(ctx, `SELECT count(*) FROM builds`)
		if err != nil {
			return err
		}
		want = built + 1
	}
	return c.Crew.Until(ctx, patience, func(ctx context.Context) (bool, error) {
		built, err := c.DB.Count(ctx, `SELECT count(*) FROM builds`)
		return built >= want, err
	})
}

// restartLeases spreads the restarts over the incidents, each at a moment that is drawn.
func (c *column) restartLeases(ctx context.Context, total int, done <-chan struct{}) error {
	random := c.random(2)
	for i, n := 0, 0; i < c.restarts; i++ {
		for ; n < i*total/c.restarts; n++ {
			select {
			case <-done:
			case <-ctx.Done():
				return nil
			}
		}
		if !backoff.Sleep(ctx, time.Duration(random.Int64N(int64(2*time.Second)))) {
			return nil
		}
		if err := c.nats.restart(); err != nil {
			return err
		}
		c.board.Event(c.Name, fmt.Sprintf("the store of leases restarted, %d of %d", i+1, c.restarts))
	}
	return nil
}

// drained limits the time after the last incident until all ticks of the time before are built.
const drained = 30 * time.Second

// settle returns once all ticks until this moment are built, and enough of them.
func (c *column) settle(ctx context.Context) error {
	now := time.Now()
	due := now.Truncate(c.every) // the last tick
	err := c.Crew.Until(ctx, drained, func(ctx context.Context) (bool, error) {
		done, _, err := c.progress(ctx, due)
		return done, err
	})
	if err != nil {
		return fmt.Errorf("the ticks until %s are not all built: %w", due.Format(time.RFC3339), err)
	}
	if c.chaos {
		c.board.Event(c.Name, "drained "+show.Seconds(time.Since(now))+" after the last incident")
	}
	limit := patience + time.Duration(c.Ticks)*c.every
	return c.Crew.Until(ctx, limit, func(ctx context.Context) (bool, error) {
		_, ticks, err := c.progress(ctx, due)
		return ticks >= c.Ticks, err
	})
}

// progress reports whether all jobs have built the tick due, and counts the ticks of all jobs from the
// first build to the last.
func (c *column) progress(ctx context.Context, due time.Time) (done bool, ticks int, err error) {
	done = true
	for _, job := range c.jobs {
		first, last, err := c.span(ctx, job)
		if err != nil {
			return false, 0, err
		}
		done = done && !last.Before(due)
		ticks += int(last.Sub(first)/c.every) + 1
	}
	return done, ticks, nil
}

// span returns the first and the last tick that are built.
func (c *column) span(ctx context.Context, job string) (first, last time.Time, err error) {
	var from, to int64
	err = c.DB.QueryRowContext(ctx, `SELECT coalesce(min(tick), 0), coalesce(max(tick), 0) FROM builds WHERE job = $1`, job).Scan(&from, &to)
	return time.Unix(from, 0).UTC(), time.Unix(to, 0).UTC(), err
}
