package consumer

import (
	"sync"
	"time"
)

// This file measures for how long this process has run, so that the time of a freeze counts neither
// as a hang nor against a message. hang.go and verdict.go decide what follows.

// awake measures the time for which this process runs, in ticks of a timer. A frozen process (a
// signal, a debugger, no CPU time) misses ticks. So awake distinguishes a freeze from a slow call.
type awake struct {
	step  time.Duration
	then  func() // called after the last tick
	timer *time.Timer

	mu    sync.Mutex
	last  time.Time
	left  int
	slept time.Duration // total by which ticks came late
}

const (
	// awakeTicks divides the measured time: a freeze, however long, costs a call at most one tick
	// of it.
	awakeTicks = 16

	// awakeSlack is how late a tick may come on a busy machine.
	awakeSlack = 250 * time.Millisecond
)

// afterAwake calls then, on its own goroutine, once this process has run for about d.
func afterAwake(d time.Duration, then func()) *awake {
	a := &awake{step: max(d/awakeTicks, 1), then: then, last: time.Now(), left: awakeTicks}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(a.step, a.run)
	return a
}

func (a *awake) run() {
	a.mu.Lock()
	over := a.tick(time.Now())
	if a.left > 0 {
		a.timer.Reset(a.step)
	}
	a.mu.Unlock()
	if over {
		a.then()
	}
}

// tick counts one tick. The ticks that a freeze has missed are not made up for, so the process gets
// the rest of its time after the thaw.
func (a *awake) tick(now time.Time) (over bool) {
	if a.left == 0 {
		return false // stopped meanwhile
	}
	a.slept += a.late(now)
	a.last = now
	a.left--
	return a.left == 0
}

// late returns how late a tick at now is, or 0 if a busy machine explains it.
func (a *awake) late(now time.Time) time.Duration {
	if late := now.Sub(a.last) - a.step; late > max(a.step, awakeSlack) {
		return late
	}
	return 0
}

// stop ends the count and returns for how long the process did not run.
func (a *awake) stop() (slept time.Duration) {
	a.timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left > 0 {
		a.slept += a.late(time.Now())
		a.left = 0
	}
	return a.slept
}
