package rebuild

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// column is a running column.
type column struct {
	*show.Column
	*Nightly
	board  *show.Board
	reader *reader
	audit  audit
}

func (n *Nightly) newColumn(name string, b *show.Board) *column {
	id := "nightly-" + strings.ToLower(rand.Text()[:8]) + "-" + name // for a store that others use, too
	return &column{Column: &show.Column{Name: name, ID: id}, Nightly: n, board: b}
}

const tables = `
CREATE TABLE builds (job TEXT NOT NULL, tick INTEGER NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE parts (job TEXT NOT NULL, tick INTEGER NOT NULL, part INTEGER NOT NULL, object TEXT NOT NULL, sum TEXT NOT NULL);
CREATE INDEX builds_tick ON builds (job, tick);
CREATE INDEX parts_tick ON parts (job, tick);`

func (c *column) isBaseline() bool { return c.Name == show.Baseline }

// stopGrace is how long pods may take to end.
const stopGrace = 20 * time.Second

func (c *column) play(ctx context.Context) (err error) {
	if c.DB, err = show.NewDatabase(ctx, &show.Settings{Dir: c.dir}, c.ID); err != nil {
		return err
	}
	defer c.DB.Close()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	defer func() {
		if err := c.removeLeases(); err != nil {
			c.board.Event(c.Name, "not all could be cleaned up: "+err.Error())
		}
	}()
	c.Crew = show.NewCrew(func(int) any { return c.config() })
	defer func() { _ = c.Crew.Stop(0) }()
	for range 2 {
		if _, err := c.Crew.Start(); err != nil {
			return err
		}
	}
	if err := c.disturb(ctx); err != nil {
		return err
	}
	if err := c.Crew.Stop(stopGrace); err != nil {
		return err
	}
	if err := c.reader.read(ctx); err != nil {
		return err
	}
	if c.audit, err = c.judge(ctx); err != nil {
		return err
	}
	c.Exact, c.Rows = c.audit.exact(), c.audit.rows(c)
	return nil
}

func (c *column) prepare(ctx context.Context) error {
	if _, err := c.DB.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	tell := func(line string) { c.board.Event(c.Name, line) }
	objects := client(c.objects)
	if c.isBaseline() {
		c.reader = newReader(usualLook(objects, c.ID, c.parts), c.jobs, tell)
		return nil
	}
	pointers, err := openPointers(ctx, objects, c.ID)
	if err != nil {
		return err
	}
	c.reader = newReader(fencedLook(objects, pointers, c.parts), c.jobs, tell)
	return sqlsink.Migrate(ctx, c.DB.DB, sqlsink.SQLite, sqlsink.Options{})
}

func (c *column) config() config {
	return config{
		Baseline: c.isBaseline(), ID: c.ID, Jobs: c.jobs, Every: c.every, TTL: c.ttl, Parts: c.parts,
		Database: c.DB.URL, Objects: c.objects, Leases: c.leases(), Redis: c.redis,
	}
}

// removeLeases removes what the pods have left in a store that others use, too.
func (c *column) removeLeases() error {
	if c.Lease == "" || c.isBaseline() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), show.Preparing)
	defer cancel()
	store, err := find(c.stores, c.Lease)
	if err != nil {
		return err
	}
	s, closer, err := store.Open(ctx, c.Lease)
	if err != nil {
		return fmt.Errorf("remove the leases of group %s: %w", c.ID, err)
	}
	defer closer()
	for item, err := range s.List(ctx, cas.Join(c.ID, "")) {
		if err == nil {
			err = s.Delete(ctx, item)
		}
		if err != nil {
			return fmt.Errorf("remove the leases of group %s: %w", c.ID, err)
		}
	}
	return nil
}

// disturb returns once all incidents are over and all ticks until then are built. A reader reads
// meanwhile.
func (c *column) disturb(ctx context.Context) error {
	reading, readingCtx := errgroup.WithContext(ctx)
	playing, stop := context.WithCancel(readingCtx)
	reading.Go(func() error { return c.reader.run(playing) })
	reading.Go(func() error {
		defer stop()
		if err := c.incidents(readingCtx); err != nil {
			return err
		}
		return c.settle(readingCtx)
	})
	return reading.Wait()
}
