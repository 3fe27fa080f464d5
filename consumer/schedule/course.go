package schedule

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// course is what this process knows of the present run of a job with steps. The handler writes it, and
// the tenure reads it once the step was committed.
type course struct {
	mu     sync.Mutex
	step   epoch.Offset // of the last call
	last   bool         // no step follows that one
	failed epoch.Epoch  // of the claim under which that call has not returned, or has failed; or 0
	tick   time.Time    // of the run
	began  time.Time
}

// called says that the handler was called for a step. If it fails and OnFailure takes the step, the run is
// over.
func (c *course) called(step epoch.Offset, e epoch.Epoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step, c.last, c.failed = step, true, e
}

func (c *course) returned(step epoch.Offset, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step, c.last, c.failed = step, last, 0
}

// isOver reports whether the step was the last one of its run, as far as this process knows. A step that
// failed under an earlier claim may have been done by another process since, and then the run goes on.
func (c *course) isOver(step epoch.Offset, present epoch.Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step == step && c.last && (c.failed == 0 || c.failed == present)
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
