package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// freezeWorker stops a worker (SIGSTOP) at a point of its next transaction or request, waits until
// its work has moved on, and lets it continue (SIGCONT). It calls release once the worker waits for
// the message at which it will stop. It returns a line that describes the incident.
func (c *Crew) freezeWorker(ctx context.Context, worker int, at Point, release func()) (string, error) {
	p, err := c.strike(ctx, worker, at, release)
	if err != nil {
		return "", err
	}
	if err := c.freezeUnlocked(ctx, p); err != nil {
		return "", err
	}
	began := time.Now()
	_, moving := c.moveOn(ctx, p, at)
	frozen := time.Since(began)
	if err := errors.Join(moving, thaw(p.cmd.Process)); err != nil {
		return "", err
	}
	c.mu.Lock()
	p.away = false
	p.order("")
	c.mu.Unlock()
	err = c.await(ctx, patience, func() bool { return p.outcome != "" })
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("worker %d was thawed %v ago and neither committed nor gave up", p.n, patience)
	}
	return fmt.Sprintf("worker %d frozen %s at %s%s, then %s", p.n, Seconds(frozen), p.subject, at.phrase(), p.outcome), err
}

// killWorker ends a worker (SIGKILL) at a point of its next transaction or request, and starts
// another. The usual point is after the commit and before the source knows. release is as in
// freezeWorker. It returns a line that describes the incident, once the worker's work has moved on.
func (c *Crew) killWorker(ctx context.Context, worker int, at Point, release func()) (string, error) {
	p, err := c.strike(ctx, worker, at, release)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	p.kill()
	n, err := c.Start()
	if err != nil {
		return "", err
	}
	took, err := c.moveOn(ctx, p, at)
	after := ""
	if took > 0 {
		after = "taken over in " + Seconds(took) + ", "
	}
	return fmt.Sprintf("worker %d killed at %s%s, %sworker %d joined", p.n, p.subject, at.phrase(), after, n), err
}

// strike orders a worker with partitions to stop at a point, calls release, and waits until the
// worker has stopped there. It prefers the given worker. If the worker loses its partitions first,
// or repeats what another worker has done, strike tries again.
func (c *Crew) strike(ctx context.Context, worker int, at Point, release func()) (*process, error) {
	for {
		c.mu.Lock()
		p := c.victim(worker)
		if p != nil {
			p.subject, p.outcome = "", ""
			p.order(at)
		}
		c.struck, c.at = p, at
		c.mu.Unlock()
		if p == nil {
			return nil, errors.New("no worker holds a partition")
		}
		release()
		release = func() {}
		err := c.await(ctx, patience, func() bool { return p.subject != "" || !c.able(p.n) })
		switch {
		case errors.Is(err, errTimeout):
			return nil, fmt.Errorf("worker %d got no message to be stopped at for %v", p.n, patience)
		case err != nil:
			return nil, err
		case p.subject == "":
			worker = p.n + 1
			continue
		}
		repeats, err := c.done(ctx, p.subject)
		if !repeats || err != nil || at == AfterCommit {
			return p, err
		}
		c.mu.Lock()
		p.order("") // what another worker has done is not taken over
		c.mu.Unlock()
	}
}

// able reports whether a worker gets messages. It requires the mutex.
func (c *Crew) able(worker int) bool {
	return c.partitions == 0 || slices.Contains(slices.Collect(maps.Values(c.holder)), worker)
}

// victim returns the given worker if it lives and gets messages, and otherwise the next such
// worker. It requires the mutex.
func (c *Crew) victim(worker int) *process {
	able := slices.DeleteFunc(slices.Sorted(maps.Keys(c.workers)), func(n int) bool { return !c.able(n) })
	if len(able) == 0 {
		return nil
	}
	i, _ := slices.BinarySearch(able, worker)
	return c.workers[able[i%len(able)]]
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

// lockedFor is how long the next owner may be blocked by the transaction of a frozen one. It is
// longer than a healthy transaction takes.
const lockedFor = 3 * time.Second

// moveOn waits until other workers have all partitions, and until one of them has done what p had in
// hand. If the transaction of p blocks the other worker, it is enough that the other one has had the
// partitions for a few seconds. moveOn returns how long the takeover took, or 0 if there was nothing
// to take over.
func (c *Crew) moveOn(ctx context.Context, p *process, at Point) (took time.Duration, err error) {
	began := time.Now()
	c.mu.Lock()
	p.away = true
	maps.DeleteFunc(c.holder, func(_ int32, n int) bool { return n == p.n })
	c.notify()
	c.mu.Unlock()
	if err := c.awaitHeld(ctx); err != nil {
		return 0, fmt.Errorf("worker %d is gone: %w", p.n, err)
	}
	if c.partitions > 0 {
		took = time.Since(began)
	}
	if at != AfterCommit {
		limit := patience
		if at == AfterWrites {
			limit = lockedFor
		}
		err = c.poll(ctx, limit, func(ctx context.Context) (bool, error) { return c.done(ctx, p.subject) })
		switch {
		case at == AfterWrites && errors.Is(err, errTimeout):
		case err != nil:
			return 0, fmt.Errorf("nobody else has done %s: %w", p.subject, err)
		case c.partitions == 0:
			took = time.Since(began)
		}
	}
	if took > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.takeovers = append(c.takeovers, took)
	}
	return took, nil
}
