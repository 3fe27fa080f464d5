package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// Crew is the worker processes of one column and their reports. It is safe for concurrent use.
type Crew struct {
	config    func(n int) any
	http      string                                                           // of the status page, or ""
	unlocked  func(ctx context.Context) bool                                   // nobody holds the database's one write lock
	elsewhere func(ctx context.Context, subject string, not int) (bool, error) // [Side.Elsewhere]

	mu       sync.Mutex
	started  int
	workers  map[int]*process // living workers
	at       Point            // where the present incident strikes
	struck   *process         // who has stopped there
	outcomes map[string]int
	address  string
	failure  error // of a worker that ended by itself
}

// NewCrew returns a crew without workers. config returns the configuration of the n-th worker, from
// 1, which is passed on as JSON.
func NewCrew(config func(n int) any) *Crew {
	return &Crew{config: config, workers: map[int]*process{}, outcomes: map[string]int{}}
}

// Watch says what [Crew.Freeze] and [Crew.Kill] wait for: elsewhere is as [Side.Elsewhere]. A worker is
// not frozen while it has the write lock of db, if that is SQLite. Call it between incidents.
func (c *Crew) Watch(db *Database, elsewhere func(ctx context.Context, subject string, not int) (bool, error)) {
	c.unlocked, c.elsewhere = db.unlocked, elsewhere
}

// Start adds a worker. It lives until it is killed, [Crew.Stop], or the end of this process.
func (c *Crew) Start() (n int, err error) {
	c.mu.Lock()
	c.started++
	n = c.started
	c.mu.Unlock()
	p, err := startProcess(n, c.config(n), c.http, c.handle)
	if err != nil {
		return n, fmt.Errorf("start worker %d: %w", n, err)
	}
	c.mu.Lock()
	c.workers[n] = p
	c.mu.Unlock()
	go func() {
		<-p.exited
		c.mu.Lock()
		defer c.mu.Unlock()
		if !p.stopping && c.failure == nil {
			c.failure = p.failure()
		}
		delete(c.workers, n)
	}()
	return n, nil
}

func (c *Crew) handle(p *process, r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Kind {
	case reportReached:
		if c.struck == nil && r.Point == c.at {
			c.struck, p.subject, p.outcome = p, r.Text, ""
		} else { // another worker was faster
			p.order("")
		}
	case reportEnded:
		c.outcomes[r.Text]++
		if r.Stopped {
			p.outcome = r.Text
		}
	case reportReady:
		c.address = r.Text
	}
}

// order requires the crew's mutex. A worker that cannot read its orders has ended, which [Crew]
// notices.
func (p *process) order(stopAt Point) { _ = p.orders.Encode(stopAt) }

func (c *Crew) resume(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.order("")
}

var errTimeout = errors.New("took too long")

// poll calls done until it returns true. It fails when ctx ends, when a worker has ended by itself,
// or after limit.
func (c *Crew) poll(ctx context.Context, every, limit time.Duration, done func(context.Context) (bool, error)) error {
	for deadline := time.Now().Add(limit); backoff.Sleep(ctx, every); {
		c.mu.Lock()
		failure := c.failure
		c.mu.Unlock()
		if failure != nil {
			return failure
		}
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errTimeout
		}
	}
	return context.Cause(ctx)
}

// Until calls done until it returns true. It fails when ctx ends, when a worker has ended by itself, or
// after limit. The error has what the workers have said last.
func (c *Crew) Until(ctx context.Context, limit time.Duration, done func(context.Context) (bool, error)) error {
	err := c.poll(ctx, often, limit, done)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w\n%s", err, c.logs())
	}
	return err
}

// await polls what workers report. It calls done with the mutex held.
func (c *Crew) await(ctx context.Context, limit time.Duration, done func() bool) error {
	return c.poll(ctx, 10*time.Millisecond, limit, func(context.Context) (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return done(), nil
	})
}

// Address returns what a worker has reported with [Stage.Ready].
func (c *Crew) Address(ctx context.Context) (string, error) {
	err := c.await(ctx, patience, func() bool { return c.address != "" })
	return c.address, err
}

// Outcomes counts the transactions or requests that were [Stale], [CutOff] or [Refused].
func (c *Crew) Outcomes(outcome string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcomes[outcome]
}

func (c *Crew) rows() []Row {
	return []Row{
		{"commits refused as stale", Thousands(c.Outcomes(Stale))},
		{"transactions cut off", Thousands(c.Outcomes(CutOff))},
	}
}

// living returns the living workers in the order in which they were started.
func (c *Crew) living() []*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.workers), func(a, b *process) int { return a.n - b.n })
}

// logs returns the last lines that each living worker wrote to standard error.
func (c *Crew) logs() string {
	var b strings.Builder
	for _, p := range c.living() {
		fmt.Fprintf(&b, "worker %d says\n%s\n", p.n, p.log.String())
	}
	return strings.TrimRight(b.String(), "\n")
}

// Stop asks all workers to end, and kills those still running after grace. It returns once all have
// ended, and fails if one had to be killed after a grace, or had ended by itself.
func (c *Crew) Stop(grace time.Duration) error {
	ps := c.living()
	c.mu.Lock()
	failure := c.failure
	for _, p := range ps {
		p.stopping = true
	}
	c.mu.Unlock()
	for _, p := range ps {
		_ = thaw(p.cmd.Process)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, p := range ps {
		select {
		case <-p.exited:
			continue
		case <-ctx.Done():
		}
		if grace > 0 {
			failure = fmt.Errorf("worker %d did not end within %v of being asked to, and was killed\n%s", p.n, grace, p.log.String())
		}
		p.kill()
	}
	return failure
}
