package show

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/ops/statusz"
)

// The columns of a show.
const (
	Fence    = "fenced"
	Baseline = "baseline"
)

const (
	// patience limits each wait. It is many times the usual duration.
	patience  = time.Minute
	stopGrace = 20 * time.Second
)

// Side is the part of a column that differs between shows and columns.
type Side interface {
	// Prepare makes what the workers use: tables, topics, other processes.
	Prepare(ctx context.Context) error
	// Config returns the configuration of the n-th worker, from 1, which is passed on as JSON.
	Config(n int) any
	// Send sends the messages [from, to), and returns once the broker has acknowledged them.
	Send(ctx context.Context, from, to int) error
	// Applied counts the messages whose effects are in the database.
	Applied(ctx context.Context) (int, error)
	// Done reports whether the database has the effects of a transaction's or request's subject.
	Done(ctx context.Context, subject string) (bool, error)
	// Judge reports whether the workers' result is exact. The workers have ended by then.
	Judge(ctx context.Context) (exact bool, rows []Row, err error)
	// Close removes everything that the column made outside its database.
	Close() error
}

// Column is a running column of a show.
type Column struct {
	Name string // Fence or Baseline
	ID   string // names what it makes on its services
	Side Side
	Held int             // partitions that workers hold; 0 if any worker gets any message
	DB   *Database       // made before Prepare, unless the column brings its own
	Page statusz.Options // of the status page, set by Prepare
	Crew *Crew

	Judged bool // the tables could be read
	Exact  bool // and are exact
	Rows   []Row
	Err    error

	s     *Settings
	board *Board
	pace  *pace
	plan  []incident
}

func (c *Column) begin(s *Settings, b *Board) {
	n := incidents(s.Duration, s.Every)
	c.s, c.board = s, b
	c.plan = newSchedule(s.Seed, n, s.Workers, s.Freezes, s.Kills)
	c.pace = newPace(s.Messages, s.Duration, n)
	c.Crew = NewCrew(c.Side.Config)
	c.Crew.partitions, c.Crew.done = c.Held, c.Side.Done
	if c.Name == Fence {
		c.Crew.http = s.HTTP
	}
}

func (c *Column) play(ctx context.Context) (err error) {
	defer func() {
		_ = c.Crew.Stop(0)
		if closing := errors.Join(c.Side.Close(), c.DB.Drop()); closing != nil {
			c.board.Event(c.Name, "not all could be cleaned up: "+closing.Error())
		}
	}()
	if c.DB == nil {
		if c.DB, err = NewDatabase(ctx, c.s, c.ID); err != nil {
			return err
		}
	}
	c.Crew.unlocked = c.DB.unlocked
	if err := c.Side.Prepare(ctx); err != nil {
		return err
	}
	if c.Name == Fence && c.s.HTTP != "" {
		stop, err := serveStatus(c.s.HTTP, c.Page)
		if err != nil {
			return err
		}
		defer stop()
	}
	sent, err := c.consume(ctx)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Crew.logs())
	}
	if ctx.Err() != nil {
		return ctx.Err() // interrupted: no one reads the result
	}
	err = errors.Join(err, c.Crew.Stop(stopGrace))
	if !sent {
		return err
	}
	exact, rows, judging := c.Side.Judge(ctx)
	c.Exact, c.Rows, c.Judged = exact, append(rows, c.Crew.rows()...), judging == nil
	return errors.Join(err, judging)
}

// consume returns once the workers have applied all messages.
func (c *Column) consume(ctx context.Context) (sent bool, err error) {
	for range c.s.Workers {
		if _, err := c.Crew.Start(); err != nil {
			return false, err
		}
	}
	if err := c.Crew.awaitHeld(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	loaded := make(chan error)
	go func() {
		err := c.send(ctx)
		if err != nil {
			cancel(err)
		}
		loaded <- err
	}()
	striking := c.strike(ctx)
	if striking != nil {
		cancel(striking)
	}
	if err := errors.Join(striking, <-loaded); err != nil {
		return false, context.Cause(ctx)
	}
	return true, c.settle(ctx)
}

func (c *Column) send(ctx context.Context) error {
	for {
		from, to, err := c.pace.next(ctx)
		if err != nil || from == to {
			return err
		}
		if err := c.Side.Send(ctx, from, to); err != nil {
			return err
		}
	}
}

// strike plays the incidents one after the other, each once its share of the messages is sent.
func (c *Column) strike(ctx context.Context) error {
	for i, in := range c.plan {
		due := int(in.after * float64(c.s.Messages))
		err := c.Crew.poll(ctx, c.s.Duration+patience, func(context.Context) (bool, error) { return c.pace.Sent() >= due, nil })
		if err != nil {
			return err
		}
		strike := c.Crew.freezeWorker
		if in.kill {
			strike = c.Crew.killWorker
		}
		line, err := strike(ctx, in.worker, in.at, c.pace.release)
		if err != nil {
			return fmt.Errorf("incident %d of %d: %w", i+1, len(c.plan), err)
		}
		c.board.Event(c.Name, line)
	}
	return nil
}

// settle returns once all messages are applied.
func (c *Column) settle(ctx context.Context) error {
	for last, n := -1, 0; n < c.s.Messages; last = n {
		err := c.Crew.poll(ctx, patience, func(ctx context.Context) (progress bool, err error) {
			n, err = c.Side.Applied(ctx)
			return n > last, err
		})
		if errors.Is(err, errTimeout) {
			return fmt.Errorf("no progress for %v with %d messages to go", patience, c.s.Messages-n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
