package consumer

import "sync"

// gate counts those who are inside, and lets nobody in once it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// enter reports whether the caller may continue, and must leave then.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *gate) leave() { g.inside.Done() }

// shut lets nobody in any more.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// close is shut, and waits for those who are inside.
func (g *gate) close() {
	g.shut()
	g.inside.Wait()
}
