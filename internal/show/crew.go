package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Crew is the worker processes of one column and their reports. It is safe for concurrent use.
type Crew struct {
	// Elsewhere reports whether a request has been done and recorded, by any worker. It queries the
	// database. It is required if incidents strike workers at a request.
	Elsewhere func(ctx context.Context, subject string) (bool, error)

	// Progress returns how much of the load is done. Defaults to the applied messages.
	Progress func(Tally) int

	// Serving makes each worker serve a status page of its own.
	Serving bool

	config func(n int) any

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever a field below changes
	started  int
	workers  map[int]*process // living workers
	holder   map[int32]int    // the worker that last reported a partition
	number   map[int32]int64  // the number in that report
	position map[int32]int64  // the offset after the last reported effect
	vacant   map[int32]vacancy
	tally    Tally
	failure  error // of a worker that ended by itself
}

type vacancy struct {
	owner int
	since time.Time
}

// Tally counts the reports of a crew.
type Tally struct {
	Applied   int             // reported effects
	Answered  int             // requests, including repeated ones
	Done      int             // of the load, by Crew.Progress
	Stale     int             // transactions refused because their claim was stale
	Refused   int             // requests refused because their epoch was stale
	Late      int             // offsets or acks refused by the source after the effects were committed
	Ended     int             // transactions whose connection had ended when a frozen worker was thawed
	Failed    int             // transactions given up for other reasons
	Takeovers []time.Duration // from a freeze or kill to the next owner, for each partition
	Workers   int             // living ones
	Frozen    int             // of those
}

// NewCrew returns a crew without workers. config returns the configuration of the n-th worker, from
// 1, which is passed on as JSON.
func NewCrew(config func(n int) any) *Crew {
	return &Crew{
		config: config, changed: make(chan struct{}), workers: map[int]*process{},
		holder: map[int32]int{}, number: map[int32]int64{}, position: map[int32]int64{}, vacant: map[int32]vacancy{},
	}
}

// Start adds a worker. It lives until it is killed, [Crew.Stop], or the end of this process.
func (c *Crew) Start() (n int, err error) {
	c.mu.Lock()
	c.started++
	n = c.started
	c.mu.Unlock()
	p, err := startProcess(n, c.config(n), c.handle)
	if err != nil {
		return n, err
	}
	if c.Serving {
		if err := p.orders.Encode(order{Do: orderServe}); err != nil {
			p.kill()
			return n, fmt.Errorf("have worker %d serve its status: %w", n, err)
		}
	}
	c.mu.Lock()
	c.workers[n] = p
	c.tally.Workers++
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
		c.tally.Workers--
		c.notify()
	}()
	return n, nil
}

// progress requires the mutex.
func (c *Crew) progress() int {
	if c.Progress == nil {
		return c.tally.Applied
	}
	return c.Progress(c.tally)
}

// Tally returns the present counts.
func (c *Crew) Tally() Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tally
	t.Done = c.progress()
	t.Takeovers = slices.Clone(t.Takeovers)
	return t
}

func (c *Crew) handle(p *process, r report) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.notify()
	switch r.Kind {
	case reportHolds:
		if r.Number < c.number[r.Partition] {
			return // another worker has had it since
		}
		c.holder[r.Partition], c.number[r.Partition] = p.n, r.Number
		v, ok := c.vacant[r.Partition]
		if ok {
			delete(c.vacant, r.Partition)
		}
		if ok && v.owner != p.n {
			c.tally.Takeovers = append(c.tally.Takeovers, now.Sub(v.since))
		}
	case reportArmed:
		p.armed = r.Point
	case reportReached:
		p.reached = &r
	case reportApplied:
		c.tally.Applied += r.Messages
		c.tally.Answered += r.Answers
		for _, s := range r.Work {
			c.position[s.Partition] = max(c.position[s.Partition], s.To)
		}
		p.settle(r)
	case reportStale:
		c.tally.Stale++
		p.settle(r)
	case reportDoubt:
		if p.settle(r) {
			c.tally.Ended++
		} else {
			c.tally.Failed++
		}
	case reportFailed:
		c.tally.Failed++
		p.settle(r)
	case reportServes:
		p.address = r.Text
	case reportCounted:
		c.tally.Applied += r.Messages
	case reportSent:
		p.settle(r)
	case reportRefused:
		c.tally.Refused++
		p.settle(r)
	case reportLate:
		c.tally.Late++
	}
}

// settle notes the outcome of a transaction, and reports whether p was stopped in that transaction.
func (p *process) settle(r report) bool {
	mine := p.reached != nil && p.outcome == nil && slices.Equal(p.reached.Work, r.Work) && p.reached.Subject == r.Subject
	if mine {
		p.outcome = &r
	}
	return mine
}

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

// AwaitHeld returns once each partition below partitions has an owner.
func (c *Crew) AwaitHeld(ctx context.Context, partitions int, limit time.Duration) error {
	held := 0
	err := c.await(ctx, limit, func() bool {
		held = len(c.holder)
		return held >= partitions
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("the workers hold %d of %d partitions after %v", held, partitions, limit)
	}
	return err
}

// AwaitPositions returns once workers have reported effects up to ends: the offset after each
// partition's last message. It fails after patience without progress.
func (c *Crew) AwaitPositions(ctx context.Context, ends map[int32]int64, patience time.Duration) error {
	for last := int64(math.MaxInt64); ; {
		var left int64
		err := c.await(ctx, patience, func() bool {
			left = 0
			for p, end := range ends {
				left += max(0, end-c.position[p])
			}
			return left < last
		})
		switch {
		case errors.Is(err, errTimeout):
			return fmt.Errorf("no progress for %v with %d messages to go", patience, left)
		case err != nil:
			return err
		case left == 0:
			return nil
		}
		last = left
	}
}

// AwaitNone polls left until it returns zero. It fails if left has not fallen for patience.
func (c *Crew) AwaitNone(ctx context.Context, left func(context.Context) (int, error), patience time.Duration) error {
	least, since := math.MaxInt, time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := left(ctx)
		if err != nil || n == 0 {
			return err
		}
		if n < least {
			least, since = n, time.Now()
		}
		if time.Since(since) > patience {
			return fmt.Errorf("no progress for %v with %d messages to go", patience, n)
		}
		if err := c.await(ctx, 0, func() bool { return false }); !errors.Is(err, errTimeout) {
			return err
		}
		<-tick.C
	}
}

// Logs returns the last lines that each living worker wrote to standard error.
func (c *Crew) Logs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(c.workers)) {
		fmt.Fprintf(&b, "worker %d says\n%s\n", n, c.workers[n].log.last(5))
	}
	return strings.TrimRight(b.String(), "\n")
}

// Stop asks all workers to end, and kills those still running after grace. It returns once all have
// ended.
func (c *Crew) Stop(grace time.Duration) (killed int) {
	c.mu.Lock()
	ps := slices.Collect(maps.Values(c.workers))
	for _, p := range ps {
		p.stopping = true
	}
	c.mu.Unlock()
	for _, p := range ps {
		_ = thaw(p.cmd.Process)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	deadline := time.After(grace)
	for _, p := range ps {
		select {
		case <-p.exited:
			_ = p.stdin.Close()
			continue
		case <-deadline:
		}
		for _, p := range ps {
			select {
			case <-p.exited:
			default:
				killed++
			}
			p.kill()
		}
		break
	}
	return killed
}
