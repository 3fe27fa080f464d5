package waits

import (
	"context"
	"sync"
	"time"
)

// This file measures for how long this process has run, so that the time of a freeze counts neither
// as a hang nor against a message. It has the two ways to wake a goroutine that waits for a change: all
// who wait, or the one whose channel it is.

// Awake measures the time for which this process runs, in ticks of a timer. A frozen process (a
// signal, a debugger, no CPU time) misses ticks. So Awake distinguishes a freeze from a slow call.
type Awake struct {
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

// AfterAwake calls then, on its own goroutine, once this process has run for about d.
func AfterAwake(d time.Duration, then func()) *Awake {
	a := &Awake{step: max(d/awakeTicks, 1), then: then, last: time.Now(), left: awakeTicks}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(a.step, a.run)
	return a
}

func (a *Awake) run() {
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
func (a *Awake) tick(now time.Time) (over bool) {
	if a.left == 0 {
		return false // stopped meanwhile
	}
	a.slept += a.late(now)
	a.last = now
	a.left--
	return a.left == 0
}

// late returns how late a tick at now is, or 0 if a busy machine explains it.
func (a *Awake) late(now time.Time) time.Duration {
	if late := now.Sub(a.last) - a.step; late > max(a.step, awakeSlack) {
		return late
	}
	return 0
}

// Stop ends the count and returns for how long the process did not run.
func (a *Awake) Stop() (slept time.Duration) {
	a.timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left > 0 {
		a.slept += a.late(time.Now())
		a.left = 0
	}
	return a.slept
}

// Lateness calls Then when a call runs on long after its context has ended, freezes not counted.
type Lateness struct {
	Then    func()
	unwatch func() bool

	mu      sync.Mutex
	stopped bool
	counts  []*Awake
}

// NewLateness returns a Lateness that measures nothing before [Lateness.Within] is called.
func NewLateness(then func()) *Lateness { return &Lateness{Then: then} }

// AfterEnd calls then, on its own goroutine, once this process has run for d since the end of ctx.
func AfterEnd(ctx context.Context, d time.Duration, then func()) *Lateness {
	l := NewLateness(then)
	l.unwatch = context.AfterFunc(ctx, func() { l.Within(d) })
	return l
}

// Within makes l call Then after d at the latest.
func (l *Lateness) Within(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.counts = append(l.counts, AfterAwake(d, l.Then))
	}
}

// Stop ends the measurement. Then may still be running, and must not matter any more.
func (l *Lateness) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.unwatch != nil {
		l.unwatch()
	}
	for _, a := range l.counts {
		a.Stop()
	}
}

// Signal wakes all who wait for a change. Its zero value is ready.
type Signal struct {
	mu   sync.Mutex
	next chan struct{}
}

// Next returns a channel that the next [Signal.Fire] closes. Whoever calls it before reading what may
// have changed misses nothing.
func (s *Signal) Next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// Fire wakes all who wait.
func (s *Signal) Fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Notify puts a token into c, which has a capacity of one, unless it has one already. Whoever receives it
// looks at everything that may have changed.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
