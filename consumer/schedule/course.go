package schedule

import (
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file remembers how far the present run of a job has come in this process. due.go decides
// which tick is run, and reader.go which step is next.

// course is what this process knows of the present run of a job, over all its tenures of the job. The
// handler writes the first part, and the reader the rest.
type course struct {
	mu   sync.Mutex
	step epoch.Offset  // of the last call
	last bool          // no step follows that one
	by   epoch.ClaimID // under which it was called

	run   place // of the run's last step that began
	under epoch.Epoch
	took  time.Duration // the work on the run's steps

	at, reported time.Time // the position and the tick for which it was said that others are left out
}

func (c *course) returned(step epoch.Offset, last bool, by epoch.ClaimID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step, c.last, c.by = step, last, by
}

// isOver reports whether the step was the last one of its run, if it was committed under one of the
// claims. If it was, the call that this process remembers under that claim is the one that was committed.
func (c *course) isOver(step epoch.Offset, claims ...epoch.ClaimID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(claims, c.by) && c.step == step && c.last
}

// begins returns how long this process has worked on a run before a step. An operator who has set the
// position, under the given epoch, begins it anew.
func (c *course) begins(p place, under epoch.Epoch) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.step == 0 || !p.at.Equal(c.run.at) || under != c.under {
		c.took = 0
	}
	c.run, c.under = p, under
	return c.took
}

func (c *course) worked(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took += d
}

// isNews reports whether it was not said yet that ticks from a position on are left out for one.
func (c *course) isNews(at, run time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.Equal(at) && c.reported.Equal(run) {
		return false
	}
	c.at, c.reported = at, run
	return true
}
