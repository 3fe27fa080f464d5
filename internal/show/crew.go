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

// Crew is the worker processes of one column and what they have reported. It is
// safe for concurrent use.
type Crew struct {
	// Elsewhere reports whether what a worker's request was about has been done
	// and recorded, by whomever. It is needed where incidents strike workers at a
	// request, and asks the database.
	Elsewhere func(ctx context.Context, subject string) (bool, error)

	// Progress is how much of the load is done. Nil means what is applied.
	Progress func(Tally) int

	// Serving has each worker serve a status page of its own.
	Serving bool

	config func(n int) any

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever something below changes
	started  int
	workers  map[int]*process // those that live
	holder   map[int32]int    // the worker that holds a partition, by what was reported
	number   map[int32]int64  // the number that it reported with it
	position map[int32]int64  // after the last effect that was reported
	vacant   map[int32]vacancy
	tally    Tally
	failure  error // of a worker that ended by itself
}

// vacancy is a partition whose owner was frozen or killed.
type vacancy struct {
	owner int
	since time.Time
}

// Tally is what a crew has reported so far, to be watched.
type Tally struct {
	Applied   int             // effects, by what workers say
	Answered  int             // requests, of which some are sent again
	Done      int             // of the load, by Crew.Progress
	Stale     int             // transactions refused because their claim was stale
	Refused   int             // requests refused because their epoch was stale
	Late      int             // offsets refused by the source, their effects already committed
	Ended     int             // transactions that a frozen worker found ended when it was thawed
	Failed    int             // transactions given up for other reasons
	Takeovers []time.Duration // from a freeze or kill to the next owner, each partition
	Workers   int             // that live
	Frozen    int             // of those
}

// NewCrew returns a crew without workers. config says what the n-th worker,
// from 1, is configured with; it is passed on as JSON.
func NewCrew(config func(n int) any) *Crew {
	return &Crew{
		config: config, changed: make(chan struct{}), workers: map[int]*process{},
		holder: map[int32]int{}, number: map[int32]int64{}, position: map[int32]int64{}, vacant: map[int32]vacancy{},
	}
}

// Start adds a worker. It lives until it is killed, [Crew.Stop], or the end of
// this process.
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

// progress is how much of the load is done. The mutex is held.
func (c *Crew) progress() int {
	if c.Progress == nil {
		return c.tally.Applied
	}
	return c.Progress(c.tally)
}

// Tally returns what has been reported so far.
func (c *Crew) Tally() Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tally
	t.Done = c.progress()
	t.Takeovers = slices.Clone(t.Takeovers)
	return t
}

// handle takes a worker's report.
func (c *Crew) handle(p *process, r report) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.notify()
	switch r.Kind {
	case reportHolds:
		if r.Number < c.number[r.Partition] {
			return // somebody has had it since
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

// settle notes what became of a transaction, and reports whether it is the one
// that p was stopped in.
func (p *process) settle(r report) bool {
	mine := p.reached != nil && p.outcome == nil && slices.Equal(p.reached.Work, r.Work) && p.reached.Subject == r.Subject
	if mine {
		p.outcome = &r
	}
	return mine
}

// notify wakes those in await. The mutex is held.
func (c *Crew) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// errTimeout is the cause when await took too long.
var errTimeout = errors.New("took too long")

// await returns once done does, which is called with the mutex held whenever
// something has changed. It fails when ctx ends, a worker has ended by itself,
// or nothing made done true for so long.
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

// AwaitHeld returns once each of so many partitions, from 0, has an owner.
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

// AwaitPositions returns once effects have been reported up to ends, each the
// offset after a partition's last message. It fails when there was no progress
// for as long as patience.
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

// AwaitNone asks left, from time to time, until that is zero. It fails when it
// has not become less for as long as patience.
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

// Logs is the last lines that each living worker wrote to standard error.
func (c *Crew) Logs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(c.workers)) {
		fmt.Fprintf(&b, "worker %d says\n%s\n", n, c.workers[n].log.last(5))
	}
	return strings.TrimRight(b.String(), "\n")
}

// Stop asks all workers to end and kills those that have not after grace. It
// returns once all are gone.
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
