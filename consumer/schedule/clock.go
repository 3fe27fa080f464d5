package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides whether this process may run jobs by its clock. It leaves jobs that nobody else
// takes.

// ErrClock is returned when the clock of this process and that of the store of the leases differ by more
// than a minute.
var ErrClock = errors.New("the clock of this process differs from that of the leases' store")

// storeClock compares this process's clock with the store's. A process whose clock is wrong gives its jobs to
// others, and says so as long as it lasts. It keeps a job that nobody else takes: the store's clock may
// be the wrong one.
type storeClock struct {
	now    func() time.Time
	store  cas.Clock
	joined func(error)

	notifying sync.Mutex // so that the consumer gets the newest state last
	spares    sync.WaitGroup

	mu    sync.Mutex
	left  error // why this process is no member of the group, as package lease says
	wrong error
	asked time.Time // when wrong was found out, or the zero time
	given map[string]epoch.Epoch
}

const (
	// mostSkew is the difference that is allowed beside the time that the answer took.
	mostSkew = time.Minute

	// spare is the time for which others can take a job that was given to them.
	spare = time.Minute
)

// report notifies the consumer whether this process is a member of the group, and in time.
func (c *storeClock) report(left error) {
	c.mu.Lock()
	c.left = left
	c.mu.Unlock()
	c.notify()
}

func (c *storeClock) notify() {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	c.mu.Lock()
	cause := errors.Join(c.left, c.wrong)
	c.mu.Unlock()
	c.joined(cause)
}

// check asks the store for the time, unless it was asked within the last lookAgain. Where the store has
// no clock or does not answer, it returns what was found last.
func (c *storeClock) check(ctx context.Context) error {
	c.mu.Lock()
	wrong, asked := c.wrong, c.asked
	c.mu.Unlock()
	if c.store == nil || !asked.IsZero() && time.Since(asked) < lookAgain {
		return wrong
	}
	began := time.Now()
	theirs, err := c.store.Now(ctx)
	took := time.Since(began)
	if err != nil {
		return wrong
	}
	c.mu.Lock()
	wrong = compare(c.now(), theirs, took)
	changed := (wrong == nil) != (c.wrong == nil)
	c.wrong, c.asked = wrong, time.Now()
	c.mu.Unlock()
	if changed {
		c.notify()
	}
	return wrong
}

// compare returns an error if the clocks differ. The store's was read within took before ours.
func compare(ours, theirs time.Time, took time.Duration) error {
	ahead, what := ours.Sub(theirs), "ahead"
	switch {
	case ahead-took > mostSkew:
	case ahead < -mostSkew:
		ahead, what = -ahead, "behind"
	default:
		return nil
	}
	return fmt.Errorf("%w: it is %v %s; set the clocks by NTP: jobs run at the wrong time and ticks are left out", ErrClock, ahead.Round(time.Second), what)
}

// gives reports whether the job is to be given to others. It is not if it was given to them under the
// same epoch and nobody has taken it.
func (c *storeClock) gives(job string, seen epoch.Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, known := c.given[job]; known && before == seen {
		return false
	}
	c.given[job] = seen
	return true
}

// spared returns a channel that is closed when this process may have the job again.
func (c *storeClock) spared(ctx context.Context) <-chan struct{} {
	until := make(chan struct{})
	c.spares.Go(func() {
		defer close(until)
		for end := time.Now().Add(spare); time.Now().Before(end) && waits.Sleep(ctx, lookAgain); {
			if c.check(ctx) == nil {
				return
			}
		}
	})
	return until
}
