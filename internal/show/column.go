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

// The columns of a show.
const (
	Fence    = "fenced"
	Baseline = "baseline"
)

// Limits on waiting. Each is many times the usual duration.
const (
	startLimit = time.Minute
	stopGrace  = 20 * time.Second

	// Patience is how long a column may make no progress.
	Patience = time.Minute
)

// Play is the part of a column that differs between shows.
type Play interface {
	// Prepare makes what the workers use: tables, topics, other processes.
	Prepare(ctx context.Context) error
	// Send sends all messages at the column's pace. After an error there is nothing to judge.
	Send(ctx context.Context) error
	// Settle returns once the workers have applied all sent messages.
	Settle(ctx context.Context) error
	// Judge reports whether the workers' result is exact. The workers have ended by then.
	Judge(ctx context.Context) (exact bool, err error)
	// Close removes everything that the column made. If keep is true, it leaves it and says where.
	Close(keep bool) (kept string, err error)
}

// Column is a running column of a show.
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
	Exact  bool // and are exact
	Err    error
	kept   string
}

// Names returns the names of the columns.
func (s Settings) Names() []string {
	if s.Naive {
		return []string{Fence, Baseline}
	}
	return []string{Fence}
}

// ID returns a random suffix for names on shared services.
func (s Settings) ID() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Stage plays all columns at the same time, shows their progress and closes them. A column's own
// error is in its Err.
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

func (c *Column) play(ctx context.Context) error {
	if err := c.Play.Prepare(ctx); err != nil {
		return err
	}
	sent, err := c.consume(ctx)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Crew.Logs())
	}
	if ctx.Err() != nil {
		c.Crew.Stop(0) // interrupted: no one reads their result
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
