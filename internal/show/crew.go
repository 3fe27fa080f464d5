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
)

// Crew is the worker processes of one column and their reports. It is safe for concurrent use.
type Crew struct {
	config     func(n int) any
	http       string                                                  // address below those of the workers' metrics, or ""
	partitions int                                                     // that workers hold; 0 if any worker gets any message
	done       func(ctx context.Context, subject string) (bool, error) // by the database
	unlocked   func(ctx context.Context) bool                          // nobody holds the database's one write lock

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced whenever a field below changes
	started   int
	workers   map[int]*process // living workers
	holder    map[int32]int    // the worker that last reported a partition
	number    map[int32]int64  // the number in that report
	struck    *process         // the victim of the present incident
	at        Point            // where it is to stop
	outcomes  map[string]int
	takeovers []time.Duration // from each freeze or kill until others had the worker's part
	address   string
	failure   error // of a worker that ended by itself
}

// NewCrew returns a crew without workers. config returns the configuration of the n-th worker, from
// 1, which is passed on as JSON.
func NewCrew(config func(n int) any) *Crew {
	return &Crew{
		config: config, changed: make(chan struct{}), workers: map[int]*process{},
		holder: map[int32]int{}, number: map[int32]int64{}, outcomes: map[string]int{},
	}
}

// Start adds a worker. It lives until it is killed, [Crew.Stop], or the end of this process.
func (c *Crew) Start() (n int, err error) {
	c.mu.Lock()
	c.started++
	n = c.started
	c.mu.Unlock()
	p, err := startProcess(n, c.config(n), portAbove(c.http, n), c.handle)
	if err != nil {
		return n, err
	}
	c.mu.Lock()
	c.workers[n] = p
	c.notify()
	c.mu.Unlock()
	go func() {
		<-p.exited
		c.mu.Lock()
		defer c.mu.Unlock()
		if !p.stopping && c.failure == nil {
			c.failure = p.failure()
		}
		delete(c.workers, n)
		c.notify()
	}()
	return n, nil
}

func (c *Crew) handle(p *process, r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.notify()
	switch r.Kind {
	case reportHolds:
		if r.Number >= c.number[r.Partition] && !p.away { // otherwise another worker has had it since
			c.holder[r.Partition], c.number[r.Partition] = p.n, r.Number
		}
	case reportReached:
		if p == c.struck && r.Point == c.at && p.subject == "" {
			p.subject = r.Text
		} else { // it had lost its partitions, and another worker was chosen
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
func (p *process) order(stopAt Point) { _ = p.orders.Encode(order{StopAt: stopAt}) }

// notify wakes the callers of await. It requires the mutex.
func (c *Crew) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

var errTimeout = errors.New("took too long")

// await returns once done returns true. It calls done with the mutex held, whenever something has
// changed. It fails when ctx ends, when a worker has ended by itself, or after limit.
func (c *Crew) await(ctx context.Context, limit time.Duration, done func() bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		c.mu.Lock()
		ok, failure, changed := done(), c.failure, c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		if failure != nil {
			return failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return errTimeout
		}
	}
}

// poll is await for what done reads from the database, five times a second.
func (c *Crew) poll(ctx context.Context, limit time.Duration, done func(context.Context) (bool, error)) error {
	for deadline := time.Now().Add(limit); ; {
		if err := c.await(ctx, 200*time.Millisecond, func() bool { return false }); !errors.Is(err, errTimeout) {
			return err
		}
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errTimeout
		}
	}
}

// awaitHeld returns once each partition has an owner.
func (c *Crew) awaitHeld(ctx context.Context) error {
	held := 0
	err := c.await(ctx, patience, func() bool {
		held = len(c.holder)
		return held >= c.partitions
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("the workers hold %d of %d partitions after %v", held, c.partitions, patience)
	}
	return err
}

// Address returns what a worker has reported with [Stage.Ready].
func (c *Crew) Address(ctx context.Context) (string, error) {
	err := c.await(ctx, patience, func() bool { return c.address != "" })
	return c.address, err
}

// Outcomes returns how many transactions and requests had an outcome, which is none of those that
// are usual.
func (c *Crew) Outcomes(outcome string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcomes[outcome]
}

func (c *Crew) rows() []Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []Row{
		{"commits refused as stale", Thousands(c.outcomes[Stale])},
		{"transactions cut off", Thousands(c.outcomes[CutOff])},
		{"taken over, times", Thousands(len(c.takeovers))},
		{"  after, median and most", spread(c.takeovers)},
	}
}

func (c *Crew) count() (alive, frozen int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.workers {
		if p.away {
			frozen++
		}
	}
	return len(c.workers), frozen
}

// logs returns the last lines that each living worker wrote to standard error.
func (c *Crew) logs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(c.workers)) {
		fmt.Fprintf(&b, "worker %d says\n%s\n", n, c.workers[n].log.String())
	}
	return strings.TrimRight(b.String(), "\n")
}

// Stop asks all workers to end, and kills those still running after grace. It returns once all have
// ended, and fails if one had to be killed after a grace, or had ended by itself.
func (c *Crew) Stop(grace time.Duration) error {
	c.mu.Lock()
	failure := c.failure
	ps := slices.Collect(maps.Values(c.workers))
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
		case <-ctx.Done():
			failure = fmt.Errorf("worker %d did not end within %v of being asked to, and was killed\n%s", p.n, grace, p.log.String())
		}
		p.kill()
	}
	return failure
}
