package show

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The names of the columns.
const (
	Fence    = "fenced"
	Baseline = "baseline"
)

// Limits of what a column waits for. Each is many times what it takes.
const (
	startLimit = time.Minute
	stopGrace  = 20 * time.Second

	// Patience is how long a column may make no progress.
	Patience = time.Minute
)

// Play is what a show does in one of its columns.
type Play interface {
	// Prepare makes what the workers use: tables, topics, other processes.
	Prepare(ctx context.Context) error
	// Send sends all messages, as the column's pace allows. Unless it returns
	// nil there is nothing to judge.
	Send(ctx context.Context) error
	// Settle returns once all that was sent has been applied.
	Settle(ctx context.Context) error
	// Judge says, after all workers have ended, whether what they left is exact.
	Judge(ctx context.Context) (exact bool, err error)
	// Close removes what the column made, or leaves it and says where.
	Close(keep bool) (kept string, err error)
}

// Column is one column of a show while it is played.
type Column struct {
	Name  string // Fence or Baseline
	Play  Play
	Crew  *Crew
	Pace  *Pace
	Plan  []Incident
	Held  int // partitions that the workers must hold before the load begins
	board *Board
	s     Settings

	Judged bool // the tables could be read
	Exact  bool // and are so
	Err    error
	kept   string
}

// Names are the columns that s asks for.
func (s Settings) Names() []string {
	if s.Naive {
		return []string{Fence, Baseline}
	}
	return []string{Fence}
}

// ID is fit for what a column makes on services that others use too.
func (s Settings) ID() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Stage plays all columns at the same time, with so many workers and messages
// each, and shows how far they are. They are closed when it returns. Their own
// errors are in the columns.
func (s Settings) Stage(ctx context.Context, b *Board, cs []*Column) (err error) {
	watch, unwatch := context.WithCancel(ctx)
	var watching, playing sync.WaitGroup
	watching.Go(func() { b.Watch(watch, func() []string { return status(b, cs) }) })
	for _, c := range cs {
		c.board, c.s = b, s
		playing.Go(func() { c.Err = c.play(ctx) })
	}
	playing.Wait()
	unwatch()
	watching.Wait()
	for _, c := range cs {
		c.Crew.Stop(0)
		kept, closing := c.Play.Close(s.Keep)
		c.kept = kept
		err = errors.Join(err, closing)
	}
	return err
}

// play plays the column and judges it.
func (c *Column) play(ctx context.Context) error {
	if err := c.Play.Prepare(ctx); err != nil {
		return err
	}
	sent, err := c.consume(ctx)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Crew.Logs())
	}
	if ctx.Err() != nil {
		c.Crew.Stop(0) // interrupted: nobody will look at what they did
	}
	if killed := c.Crew.Stop(stopGrace); killed > 0 && err == nil {
		err = fmt.Errorf("%d workers did not end within %v of being asked to, and were killed", killed, stopGrace)
	}
	if !sent || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	exact, judging := c.Play.Judge(ctx)
	c.Exact, c.Judged = exact, judging == nil
	return errors.Join(err, judging)
}

// consume runs workers, load and schedule until everything is applied.
func (c *Column) consume(ctx context.Context) (sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for range c.s.Workers {
		if _, err := c.Crew.Start(); err != nil {
			return false, err
		}
	}
	if err := c.Crew.AwaitHeld(ctx, c.Held, startLimit); err != nil {
		return false, err
	}
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		err := c.Play.Send(ctx)
		if err != nil {
			cancel(err)
			return
		}
		sent = true
	}()
	limits := Limits{Strike: time.Minute, Move: time.Minute, Settle: time.Minute}
	err = c.Crew.Play(ctx, c.Plan, c.s.Messages, c.Pace, limits, func(line string) { c.board.Event(c.Name, line) })
	if err != nil {
		cancel(err)
	}
	<-loaded
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return sent, err
	}
	return sent, c.Play.Settle(ctx)
}

// status is the block that is kept up to date.
func status(b *Board, cs []*Column) []string {
	line := func(label string, f func(*Column, Tally) string) string {
		l := fmt.Sprintf("  %-22s", label)
		for _, c := range cs {
			l += fmt.Sprintf("%18s", f(c, c.Crew.Tally()))
		}
		return l
	}
	return []string{
		"",
		line(Seconds(b.Elapsed()), func(c *Column, _ Tally) string { return c.Name }),
		line("messages sent", func(c *Column, _ Tally) string { return Thousands(c.Pace.Sent()) }),
		line("done", func(_ *Column, t Tally) string { return Thousands(t.Done) }),
		line("taken over", func(_ *Column, t Tally) string { return Thousands(len(t.Takeovers)) }),
		line("workers", func(_ *Column, t Tally) string {
			if t.Frozen > 0 {
				return fmt.Sprintf("%d, %d frozen", t.Workers, t.Frozen)
			}
			return fmt.Sprint(t.Workers)
		}),
	}
}
