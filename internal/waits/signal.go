package waits

import "sync"

// This file has the two ways to wake a goroutine that waits for a change: all who wait, or the one
// whose channel it is.

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
