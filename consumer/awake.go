package consumer

import (
	"sync"
	"time"
)

// awake counts the time for which this process has run, in ticks of a timer: one
// that was frozen, by a signal, a debugger or a machine that had no time for it,
// has missed them. So what a freeze did is told from what took long by itself.
type awake struct {
	step  time.Duration
	then  func() // called once the ticks are up
	timer *time.Timer

	mu    sync.Mutex
	last  time.Time // of the last tick
	left  int
	slept time.Duration // in all, by which ticks came late
}

const (
	awakeTicks = 16

	// awakeSlack is what a busy machine may be late by.
	awakeSlack = 250 * time.Millisecond
)

// afterAwake calls then, on a goroutine of its own, once this process has run for
// about d.
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

// tick notes a tick at now, and reports whether it was the last.
func (a *awake) tick(now time.Time) (over bool) {
	if a.left == 0 {
		return false // stopped meanwhile
	}
	a.slept += a.late(now)
	a.last = now
	a.left--
	return a.left == 0
}

// late is by how much a tick at now comes late, if by much.
func (a *awake) late(now time.Time) time.Duration {
	if late := now.Sub(a.last) - a.step; late > max(a.step, awakeSlack) {
		return late
	}
	return 0
}

// stop ends the count and returns for how long the process did not run meanwhile.
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
