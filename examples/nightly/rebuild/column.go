package rebuild

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
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
