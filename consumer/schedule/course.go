package schedule

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// course is what this process knows of the present run of a job with steps. The handler writes it, and
// the tenure reads it once the step was committed.
type course struct {
	mu    sync.Mutex
	step  epoch.Offset // of the last call
	last  bool         // no step follows that one
	tick  time.Time    // of the run
	began time.Time
}

func (c *course) returned(step epoch.Offset, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step, c.last = step, last
}

// isOver reports whether the step was the last one of its run, as far as this process knows.
func (c *course) isOver(step epoch.Offset) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step == step && c.last
}

// begins returns how long this process has worked on a tick when it begins with a step. Step 0 begins
// anew.
func (c *course) begins(p place) (worked time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.step == 0 || !p.at.Equal(c.tick) {
		c.tick, c.began = p.at, time.Now()
	}
	return time.Since(c.began)
}
