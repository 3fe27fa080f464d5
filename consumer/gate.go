package consumer

import "sync"

// This file counts the callers inside a part of Run, so that the part ends only after them. run.go
// has a gate for tenures, and background.go one for calls of Do.

// gate counts the callers inside, and admits nobody once it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// enter reports whether the caller may continue, and must then call leave.
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

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) close() {
	g.shut()
	g.inside.Wait()
}
