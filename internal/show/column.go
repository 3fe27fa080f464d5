package show

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

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

	// often is the time between two looks at the database.
	often = 200 * time.Millisecond
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
	// Elsewhere reports whether the database has effects of the subject of a transaction or request,
	// or later ones of its partition, that are not of this worker. Worker 0 is none.
	Elsewhere(ctx context.Context, subject string, not int) (bool, error)
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
	DB   *Database       // made before Prepare
	Page statusz.Options // of the status page, set by Prepare
	Crew *Crew

	Exact bool // the result
	Rows  []Row
	Err   error // why there is no result

	s     *Settings
	board *Board
	pace  *pace
}

func (c *Column) play(ctx context.Context, s *Settings, b *Board) (err error) {
	c.s, c.board, c.pace = s, b, newPace(s.Messages, s.Duration, s.incidents())
	c.Crew = NewCrew(c.Side.Config)
	c.Crew.elsewhere = c.Side.Elsewhere
	if c.Name == Fence {
		c.Crew.http = s.HTTP
	}
	defer func() {
		_ = c.Crew.Stop(0)
		if closing := errors.Join(c.Side.Close(), c.DB.Drop()); closing != nil {
			c.board.Event(c.Name, "not all could be cleaned up: "+closing.Error())
		}
	}()
	if c.DB, err = NewDatabase(ctx, c.s, c.ID); err != nil {
		return err
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
	if err := c.consume(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Crew.logs())
	}
	if err := c.Crew.Stop(stopGrace); err != nil {
		return err
	}
	c.Exact, c.Rows, err = c.Side.Judge(ctx)
	c.Rows = append(c.Rows, c.Crew.rows()...)
	return err
}

// consume returns once the workers have applied all messages.
func (c *Column) consume(ctx context.Context) error {
	for range c.s.Workers {
		if _, err := c.Crew.Start(); err != nil {
			return err
		}
	}
	loading, loadingCtx := errgroup.WithContext(ctx)
	loading.Go(func() error { return c.send(loadingCtx) })
	loading.Go(func() error { return c.strike(loadingCtx) })
	if err := loading.Wait(); err != nil {
		return err
	}
	return c.settle(ctx)
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

// incidents returns the number of freezes and kills: one for each period of length Every, and at
// least a freeze and a kill.
func (s *Settings) incidents() int { return max(2, int(s.Duration/s.Every)) }

// strike freezes and kills in turn, each once a share of the messages is sent that is drawn from the
// seed. Each kind goes through its points in turn.
func (c *Column) strike(ctx context.Context) error {
	n, random := c.s.incidents(), rand.New(rand.NewPCG(c.s.Seed, 0x5ced))
	for i := range n {
		due := int64(float64(c.s.Messages) * (float64(i) + 0.4 + 0.3*random.Float64()) / float64(n+1))
		err := c.Crew.poll(ctx, often, c.s.Duration+patience, func(context.Context) (bool, error) { return c.pace.sent.Load() >= due, nil })
		if err != nil {
			return err
		}
		strike, points := c.Crew.freezeWorker, c.s.Freezes
		if i%2 == 1 {
			strike, points = c.Crew.killWorker, c.s.Kills
		}
		line, err := strike(ctx, points[i/2%len(points)], c.pace.release)
		if err != nil {
			return fmt.Errorf("incident %d of %d: %w", i+1, n, err)
		}
		c.board.Event(c.Name, line)
	}
	return nil
}

// settle returns once all messages are applied.
func (c *Column) settle(ctx context.Context) error {
	for last, n := -1, 0; n < c.s.Messages; last = n {
		err := c.Crew.poll(ctx, often, patience, func(ctx context.Context) (progress bool, err error) {
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
