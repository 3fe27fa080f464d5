package sourcetest

import "sync"

// stall is a place where a process stops until it is told to continue.
type stall struct {
	w       *world
	once    sync.Once
	reached chan struct{}
	on      chan struct{}
}

func (w *world) newStall() *stall {
	return &stall{w: w, reached: make(chan struct{}), on: make(chan struct{})}
}

// stop ignores contexts, because its process is frozen. Later callers wait, too, and not for the
// lock of once: in a synctest bubble no time passes while a goroutine waits for a lock.
func (s *stall) stop() {
	s.once.Do(func() { close(s.reached) })
	select {
	case <-s.on:
	case <-s.w.ctx.Done(): // so that a story that failed ends
	}
}

func (s *stall) wait(what string) { s.w.awaitClosed(what, s.reached) }

func (s *stall) goOn() { close(s.on) }
