package show

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
	"github.com/epochfence/epochfence/internal/waits"
)

// Incident is what happens to the worker that is first at a point of its next transactions or requests.
// Kill ends it (SIGKILL), and starts another worker. Otherwise it is frozen (SIGSTOP) until another worker
// has done what it had in hand, and continues (SIGCONT).
type Incident struct {
	Kill bool
	At   Point
}

// strike plays an incident, and returns a line that describes it. [Column.Strike] explains release.
func (c *Crew) strike(ctx context.Context, in Incident, release func()) (string, error) {
	p, err := c.stop(ctx, in.At, release)
	if err != nil {
		return "", err
	}
	if in.Kill {
		return c.killStopped(ctx, p, in.At, release)
	}
	return c.freezeStopped(ctx, p, in.At, release)
}

func (c *Crew) freezeStopped(ctx context.Context, p *process, at Point, release func()) (string, error) {
	if err := c.freezeUnlocked(ctx, p); err != nil {
		return "", err
	}
	release()
	began := time.Now()
	moving := c.awaitElsewhere(ctx, p, at)
	frozen := time.Since(began)
	if err := errors.Join(moving, subprocess.Thaw(p.cmd.Process)); err != nil {
		return "", err
	}
	c.resume(p)
	err := c.await(ctx, p.name+", which was thawed, commits or gives up", func() bool { return p.outcome != "" })
	return fmt.Sprintf("%s frozen %s at %s %s, then %s", p.name, seconds(frozen), p.subject, at, p.outcome), err
}

func (c *Crew) killStopped(ctx context.Context, p *process, at Point, release func()) (string, error) {
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	_ = p.kill()
	release()
	began := time.Now()
	next, err := c.Start()
	if err != nil {
		return "", err
	}
	err = c.awaitElsewhere(ctx, p, at)
	return fmt.Sprintf("%s killed at %s %s, taken over in %s; %s joined", p.name, p.subject, at, seconds(time.Since(began)), next), err
}

// stop orders all workers to stop at a point, calls release, and returns the worker that stopped there
// first. [Crew] lets the others continue.
func (c *Crew) stop(ctx context.Context, at Point, release func()) (*process, error) {
	for once := sync.OnceFunc(release); ; {
		c.mu.Lock()
		c.at, c.struck = at, nil
		for _, p := range c.workers {
			p.order(at)
		}
		c.mu.Unlock()
		once()
		if err := c.await(ctx, "a worker gets a message to be stopped at", func() bool { return c.struck != nil }); err != nil {
			return nil, err
		}
		p := c.struck
		done, err := c.elsewhere(ctx, p.subject, at, "")
		if !done || err != nil || at.applied() {
			return p, err
		}
		c.resume(p) // it repeats what is done, which nobody would take over
	}
}

// freezeUnlocked freezes p at a moment at which it does not hold SQLite's one write lock: with that
// it would block all others.
func (c *Crew) freezeUnlocked(ctx context.Context, p *process) error {
	for {
		if err := subprocess.Freeze(p.cmd.Process); err != nil {
			return err
		}
		if c.unlocked(ctx) {
			return nil
		}
		if err := subprocess.Thaw(p.cmd.Process); err != nil {
			return err
		}
		if !waits.Sleep(ctx, 20*time.Millisecond) {
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
	limit, not := Patience, ""
	switch {
	case at == AfterWrites:
		limit = takeover
	case at.applied():
		limit, not = takeover, p.name
	}
	what := fmt.Sprintf("another worker goes on at %s, where %s was", p.subject, p.name)
	err := c.Poll(ctx, limit, what, func(ctx context.Context) (bool, error) { return c.elsewhere(ctx, p.subject, at, not) })
	if errors.Is(err, errTimeout) && limit == takeover {
		return nil
	}
	return err
}
