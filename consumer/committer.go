package consumer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// committer runs the transactions of the partitions pinned to it. It has two
// lanes, each with one transaction at a time: one for all partitions in good
// order, which share it, and one for those that have just failed, one by one,
// so that a failing or slow message holds up nobody else's. A third one is for
// the work beside the messages; see [side].
type committer[TX any] struct {
	run    *runner[TX]
	base   context.Context // of every transaction; never ends
	closed chan struct{}   // closed once no partition is left
	pinned int             // guarded by the runner's mutex

	mu      sync.Mutex
	shared  lane[TX]
	alone   lane[TX]
	besides lane[TX]    // its queue is sides
	sides   []*side[TX] // those with work queued
	slow    bool        // the work under way beside the messages takes its time
	sizing  sizing      // of shared transactions
	under   map[*underWay]struct{}
}

// lane holds the ready ones, in the order they became so.
type lane[TX any] struct {
	wake  chan struct{}
	queue []*holding[TX]
}

func newCommitter[TX any](base context.Context, r *runner[TX]) *committer[TX] {
	return &committer[TX]{
		run: r, base: base, closed: make(chan struct{}), sizing: newSizing(r.MaxBatch), under: map[*underWay]struct{}{},
		shared:  lane[TX]{wake: make(chan struct{}, 1)},
		alone:   lane[TX]{wake: make(chan struct{}, 1)},
		besides: lane[TX]{wake: make(chan struct{}, 1)},
	}
}

// start runs the lanes until closed is.
func (c *committer[TX]) start(running *sync.WaitGroup) {
	running.Go(func() { c.serve(running, &c.shared, c.messages(c.pickShared)) })
	running.Go(func() { c.serve(running, &c.alone, c.messages(c.pickAlone)) })
	if c.run.Beside != nil {
		running.Go(func() { c.serve(running, &c.besides, c.workBeside) })
	}
}

// messages runs one transaction over what pick takes, and reports whether there
// was one to run.
func (c *committer[TX]) messages(pick func() []*holding[TX]) func() bool {
	return func() bool {
		hs := pick()
		if len(hs) > 0 {
			c.transact(hs)
		}
		return len(hs) > 0
	}
}

// serve runs a lane. A handler that ends this goroutine is followed by another.
func (c *committer[TX]) serve(running *sync.WaitGroup, l *lane[TX], transact func() bool) {
	over := false
	defer func() {
		if !over {
			l.signal()
			running.Go(func() { c.serve(running, l, transact) })
		}
	}()
	for {
		select {
		case <-c.closed:
			over = true
			return
		case <-l.wake:
		}
		for transact() {
		}
	}
}

// pickShared takes what is ready from all partitions in good order, within the
// room there is. Those that find none are first the next time.
func (c *committer[TX]) pickShared() []*holding[TX] {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLost(&c.shared)
	room := c.sizing.room
	most := room
	if c.run.sink.Guarantee() < epoch.Transactional {
		most = 1 // no transaction of it spans two partitions
	}
	picked := c.shared.take(most)
	for _, h := range picked {
		h.begun()
		h.size = min(len(h.unapplied), c.run.MaxBatch, room/len(picked))
	}
	return picked
}

// pickAlone takes one partition that has just failed.
func (c *committer[TX]) pickAlone() []*holding[TX] {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLost(&c.alone)
	picked := c.alone.take(1)
	for _, h := range picked {
		h.begun()
		h.size = h.probe.size(min(len(h.unapplied), c.run.MaxBatch))
	}
	return picked
}

// take takes the first holdings of a lane that need not wait for work beside
// their messages, most at most.
func (l *lane[TX]) take(most int) []*holding[TX] {
	var picked []*holding[TX]
	l.queue = slices.DeleteFunc(l.queue, func(h *holding[TX]) bool {
		if len(picked) == most || !h.owner.side.mayGo() {
			return false
		}
		picked = append(picked, h)
		return true
	})
	return picked
}

// begun notes that a transaction is under way.
func (h *holding[TX]) begun() {
	h.state = busy
	h.owner.side.begun()
}

// consuming notes what o works with, and returns what has ended the claim
// already, if anything has.
func (c *committer[TX]) consuming(h *holding[TX], interrupt func()) *outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := h.owner.side
	if s == nil {
		return nil
	}
	if s.broken == nil {
		h.owner.holding, s.interrupt = h, interrupt
	}
	return s.broken
}

func (c *committer[TX]) consumed(o *ownership[TX]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.holding = nil
	if o.side != nil {
		o.side.interrupt = nil
	}
}

// brokenOutcome is what work beside the messages has ended the claim with.
func (c *committer[TX]) brokenOutcome(s *side[TX]) *outcome {
	if s == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.broken
}

// dropLost ends those whose transaction would only abort the others'.
func (c *committer[TX]) dropLost(l *lane[TX]) {
	l.queue = slices.DeleteFunc(l.queue, func(h *holding[TX]) bool {
		if h.ctx.Err() == nil {
			return false
		}
		c.end(h, outcome{end: left})
		return true
	})
}

// apply has ms applied and waits for that. Its outcome is that all of them are,
// that the partition was asked back or lost before that, or what ended the
// claim. The transaction under way is always waited for.
func (c *committer[TX]) apply(h *holding[TX], ms []Message) outcome {
	h.unapplied = ms
	h.probe.meets(ms[0].Offset)
	c.mu.Lock()
	if s := h.owner.side; s != nil && s.broken != nil {
		c.mu.Unlock()
		return *s.broken
	}
	c.ready(h)
	c.mu.Unlock()
	select {
	case out := <-h.outcome:
		return out
	case <-h.owner.tenure.Draining():
	case <-h.ctx.Done():
	}
	if c.withdraw(h) {
		return outcome{end: left}
	}
	return <-h.outcome
}

// withdraw takes h back unless a transaction of it is under way, which is then
// its last.
func (c *committer[TX]) withdraw(h *holding[TX]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.state != ready && h.state != waiting {
		h.leaving = true
		return false
	}
	c.takeBack(h)
	return true
}

// takeBack takes h, which is ready or waiting, out of the lanes. The mutex is
// held.
func (c *committer[TX]) takeBack(h *holding[TX]) {
	if h.state == waiting {
		h.timer.Stop()
	} else {
		l := c.lane(h)
		l.queue = slices.DeleteFunc(l.queue, func(q *holding[TX]) bool { return q == h })
	}
	h.state = idle
	c.besides.signal() // it may have waited for h
}

func (c *committer[TX]) lane(h *holding[TX]) *lane[TX] {
	if h.probe.active() {
		return &c.alone
	}
	return &c.shared
}

// ready queues h. The mutex is held.
func (c *committer[TX]) ready(h *holding[TX]) {
	h.state = ready
	l := c.lane(h)
	l.queue = append(l.queue, h)
	l.signal()
}

func (l *lane[TX]) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// again puts h back after a transaction, to wait for d first.
func (c *committer[TX]) again(h *holding[TX], d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.owner.side.settled(c)
	switch {
	case h.leaving:
		c.end(h, outcome{end: left})
	case d <= 0:
		c.ready(h)
	default:
		h.state = waiting
		h.timer = time.AfterFunc(d, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if h.state == waiting {
				c.ready(h)
			}
		})
	}
}

// finish ends the owner's call of apply after a transaction.
func (c *committer[TX]) finish(h *holding[TX], out outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.owner.side.settled(c)
	c.end(h, out)
}

func (c *committer[TX]) end(h *holding[TX], out outcome) {
	h.state = idle
	c.besides.signal()
	h.outcome <- out
}
