package show

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// Freeze stops a worker (SIGSTOP) at a point, waits until another worker has gone on, as [Crew.Watch]
// has it, and lets it continue (SIGCONT). It returns a line that describes the incident. Incidents of a
// crew come one after the other.
func (c *Crew) Freeze(ctx context.Context, at Point) (string, error) {
	return c.freezeWorker(ctx, at, func() {})
}

// Kill ends a worker (SIGKILL) at a point, starts another, and waits as [Crew.Freeze] does.
func (c *Crew) Kill(ctx context.Context, at Point) (string, error) {
	return c.killWorker(ctx, at, func() {})
}

// freezeWorker stops a worker (SIGSTOP) at a point of its next transaction or request, waits until
// another worker has done what it had in hand, and lets it continue (SIGCONT). It calls release once
// the worker waits for the message at which it will stop, and again for the messages at which another
// worker goes on. It returns a line that describes the incident.
func (c *Crew) freezeWorker(ctx context.Context, at Point, release func()) (string, error) {
	p, err := c.strike(ctx, at, release)
	if err != nil {
		return "", err
	}
	if err := c.freezeUnlocked(ctx, p); err != nil {
		return "", err
	}
	release()
	began := time.Now()
	moving := c.awaitElsewhere(ctx, p, at)
	frozen := time.Since(began)
	if err := errors.Join(moving, thaw(p.cmd.Process)); err != nil {
		return "", err
	}
	c.resume(p)
	err = c.await(ctx, patience, func() bool { return p.outcome != "" })
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("worker %d was thawed %v ago and neither committed nor gave up", p.n, patience)
	}
	return fmt.Sprintf("worker %d frozen %s at %s %s, then %s", p.n, Seconds(frozen), p.subject, at, p.outcome), err
}

// killWorker ends a worker (SIGKILL) at a point of its next transaction or request, and starts
// another. The usual point is after the commit and before the source knows. release is as in
// freezeWorker. It returns a line that describes the incident, once another worker has gone on where
// the killed one was.
func (c *Crew) killWorker(ctx context.Context, at Point, release func()) (string, error) {
	p, err := c.strike(ctx, at, release)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	p.kill()
	release()
	began := time.Now()
	n, err := c.Start()
	if err != nil {
		return "", err
	}
	err = c.awaitElsewhere(ctx, p, at)
	return fmt.Sprintf("worker %d killed at %s %s, taken over in %s; worker %d joined", p.n, p.subject, at, Seconds(time.Since(began)), n), err
}

// strike orders all workers to stop at a point, calls release, and returns the worker that stopped
// there first. [Crew] lets the others continue.
func (c *Crew) strike(ctx context.Context, at Point, release func()) (*process, error) {
	for once := sync.OnceFunc(release); ; {
		c.mu.Lock()
		c.at, c.struck = at, nil
		for _, p := range c.workers {
			p.order(at)
		}
		c.mu.Unlock()
		once()
		err := c.await(ctx, patience, func() bool { return c.struck != nil })
		if errors.Is(err, errTimeout) {
			return nil, fmt.Errorf("no worker got a message to be stopped at for %v", patience)
		}
		if err != nil {
			return nil, err
		}
		p := c.struck
		done, err := c.elsewhere(ctx, p.subject, 0)
		if !done || err != nil || at == AfterCommit {
			return p, err
		}
		c.resume(p) // it repeats what is done, which nobody would take over
	}
}

// freezeUnlocked freezes p at a moment at which it does not hold SQLite's one write lock: with that
// it would block all others.
func (c *Crew) freezeUnlocked(ctx context.Context, p *process) error {
	for {
		if err := freeze(p.cmd.Process); err != nil {
			return err
		}
		if c.unlocked == nil || c.unlocked(ctx) {
			return nil
		}
		if err := thaw(p.cmd.Process); err != nil {
			return err
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// takeover is longer than a takeover takes.
const takeover = 12 * time.Second

// awaitElsewhere waits until another worker has done what p had in hand, or what follows it. It waits
// no longer than a takeover takes where locks of p may block the other worker, and where p has done
// it, so that perhaps nobody has to.
func (c *Crew) awaitElsewhere(ctx context.Context, p *process, at Point) error {
	limit, not := patience, 0
	switch at {
	case AfterWrites:
		limit = takeover
	case AfterCommit:
		limit, not = takeover, p.n
	}
	err := c.poll(ctx, often, limit, func(ctx context.Context) (bool, error) { return c.elsewhere(ctx, p.subject, not) })
	switch {
	case errors.Is(err, errTimeout) && limit == takeover:
		return nil
	case err != nil:
		return fmt.Errorf("no other worker has gone on at %s, where worker %d was: %w", p.subject, p.n, err)
	}
	return nil
}
