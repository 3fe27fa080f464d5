package consumer

import (
	"context"
	"sync"
	"time"
)

// committer runs one transaction at a time, for the partitions pinned to it.
type committer[TX any] struct {
	*runner[TX]
	base   context.Context // of every transaction; never ends
	closed chan struct{}   // closed once no partition is left
	wake   chan struct{}   // something may be ready
	pinned int             // guarded by the runner's mutex

	limit int // messages a transaction takes of one partition, adapted to the time it takes

	mu    sync.Mutex
	queue []*holding[TX] // the ready ones, in the order they became so
}

func newCommitter[TX any](base context.Context, r *runner[TX]) *committer[TX] {
	return &committer[TX]{
		runner: r, base: base, limit: r.MaxBatch,
		closed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// apply has ms applied and waits for that. It returns nil once all of them are,
// errLeft if the partition was asked back or lost before that, and otherwise
// what ended the claim. The transaction under way is always waited for.
func (c *committer[TX]) apply(h *holding[TX], ms []Message) error {
	h.hand = ms
	c.mu.Lock()
	c.ready(h)
	c.mu.Unlock()
	select {
	case err := <-h.outcome:
		return err
	case <-h.tenure.Draining():
	case <-h.ctx.Done():
	}
	if c.withdraw(h) {
		return errLeft
	}
	return <-h.outcome
}

// withdraw takes h back unless a transaction of it is under way, which is then
// its last.
func (c *committer[TX]) withdraw(h *holding[TX]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch h.state {
	case ready:
		for i, q := range c.queue {
			if q == h {
				c.queue = append(c.queue[:i], c.queue[i+1:]...)
				break
			}
		}
	case waiting:
		h.timer.Stop()
	default:
		h.leaving = true
		return false
	}
	h.state = idle
	return true
}

// ready queues h. The mutex is held.
func (c *committer[TX]) ready(h *holding[TX]) {
	h.state = ready
	c.queue = append(c.queue, h)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// again puts h back after a transaction, to wait for d first.
func (c *committer[TX]) again(h *holding[TX], d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case h.leaving:
		c.end(h, errLeft)
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
func (c *committer[TX]) finish(h *holding[TX], outcome error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(h, outcome)
}

func (c *committer[TX]) end(h *holding[TX], outcome error) {
	h.state = idle
	h.outcome <- outcome
}

// loop takes a turn whenever something is ready.
func (c *committer[TX]) loop() {
	for {
		select {
		case <-c.closed:
			return
		case <-c.wake:
		}
		c.turn()
	}
}

// turn commits what is ready: one transaction for all partitions that are in
// good order, and one each for those that have just failed.
func (c *committer[TX]) turn() {
	c.mu.Lock()
	var together, alone []*holding[TX]
	for _, h := range c.queue {
		h.state = busy
		switch {
		case h.ctx.Err() != nil: // lost: its transaction would only abort the others
			c.end(h, errLeft)
		case h.alone():
			alone = append(alone, h)
		default:
			together = append(together, h)
		}
	}
	c.queue = nil
	c.mu.Unlock()

	if len(together) > 0 {
		c.transact(together)
	}
	for _, h := range alone {
		c.transact([]*holding[TX]{h})
	}
}
