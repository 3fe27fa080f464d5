package consumer

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides when the fences of partitions with nothing to commit are read, and ends the
// claims that are not in the sink any more (L4). Partitions with messages notice that by their
// commits. next.go decides what follows.

// idleCheck reads from time to time the fences of partitions that have had nothing to commit for a
// while. A commit detects a changed fence by itself. Without commits, nobody would notice that the
// sink went back or that the claim is lost. The loop owns idleCheck.
type idleCheck[TX any] struct {
	loop *loop[TX]
	ctx  context.Context
	stop context.CancelFunc

	replaced <-chan struct{}
	looking  bool
	all      bool // look at all idle partitions, not only those that were idle last time
	next     time.Time
	rest     time.Time // no look at all of them before
}

const (
	// lookAtOnce limits the fences in one read of the sink.
	lookAtOnce = 1000

	// lookRest is the least time between two looks at all partitions.
	lookRest = time.Second
)

func newIdleCheck[TX any](l *loop[TX]) idleCheck[TX] {
	c := idleCheck[TX]{loop: l, replaced: l.run.shards.ReplacedIn(l.shard)}
	c.ctx, c.stop = context.WithCancel(l.base)
	return c
}

// add takes over a partition whose claim is consumed from now on. The first one sets the time of
// the next look.
func (c *idleCheck[TX]) add(p *pending[TX]) {
	p.quiet = false
	c.loop.held[p.tenancy] = p
	if len(c.loop.held) == 1 {
		c.next = time.Now().Add(c.interval())
	}
}

// lookAtAll makes the next look cover all idle partitions, at once: the sink may have gone back.
func (c *idleCheck[TX]) lookAtAll() { c.all = len(c.loop.held) > 0 }

// sinkReplaced makes the next look cover all idle partitions, at once: another server, such as a
// promoted standby, has taken over the database, and may lack the last commits.
func (c *idleCheck[TX]) sinkReplaced() {
	c.replaced = c.loop.run.shards.ReplacedIn(c.loop.shard) // before the look, so that a change during the look is not missed
	c.lookAtAll()
}

// interval returns the time to the next look. A partition that becomes idle is looked at within 4/3
// of its term. Jitter keeps processes apart that started together.
func (c *idleCheck[TX]) interval() time.Duration {
	var least time.Duration
	for t := range c.loop.held {
		if term := t.tenure.Term(); least == 0 || term < least {
			least = term
		}
	}
	return least/3 + rand.N(least/3+1)
}

// due returns when the next look may begin, or zero if none is due. One look is under way at a
// time: a sink that answers slowly gets no second one.
func (c *idleCheck[TX]) due() time.Time {
	switch {
	case c.looking || len(c.loop.held) == 0:
		return time.Time{}
	case c.all:
		return c.rest
	default:
		return c.next
	}
}

// idler is an idle partition with its fence as it was when the look began. A partition that has
// moved since is not compared: its own transaction has compared it.
type idler[TX any] struct {
	p   *pending[TX]
	was epoch.Fence
}

// start begins a look if one is due: at partitions that are idle for the second time, or at all.
func (c *idleCheck[TX]) start(now time.Time) {
	if due := c.due(); c.looking || len(c.loop.held) == 0 || due.After(now) {
		return
	}
	var idlers []idler[TX]
	for _, p := range c.loop.held {
		if p.state == idle && (c.all || p.quiet) {
			idlers = append(idlers, idler[TX]{p, p.fence})
		}
		p.quiet = p.state == idle
	}
	if c.all {
		c.all, c.rest = false, now.Add(lookRest)
	}
	c.next = now.Add(c.interval())
	if len(idlers) == 0 {
		return
	}
	c.looking = true
	term := idlers[0].p.tenure.Term()
	c.loop.run.running.Go(func() {
		for chunk := range slices.Chunk(idlers, lookAtOnce) {
			fences, err := c.read(chunk, term)
			c.loop.send(fencesRead[TX]{chunk, fences, err})
		}
		c.loop.send(fencesDone[TX]{})
	})
}

func (c *idleCheck[TX]) read(idlers []idler[TX], timeout time.Duration) (epoch.Fences, error) {
	ps := make([]epoch.Partition, len(idlers))
	for i, d := range idlers {
		ps[i] = d.was.Partition
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	return epoch.Look(ctx, c.loop.run.sink, ps)
}

// compare ends the claims of partitions whose fences have changed. A failed read proves nothing.
func (c *idleCheck[TX]) compare(idlers []idler[TX], now epoch.Fences, err error) {
	if err != nil {
		c.loop.run.Logger.Debug("could not look at the fences of idle partitions", "partitions", len(idlers), "err", err)
		return
	}
	for _, d := range idlers {
		p := d.p
		if !c.loop.holds(p) || p.state != idle || p.fence != d.was {
			continue // a transaction or a claim checks the fence, or has checked it
		}
		f, err := now.Read(d.was.Partition)
		if err == nil {
			err = p.fence.CheckUnchanged(f)
		}
		if err != nil {
			p.claim.breakWith(foundOut(err))
			continue
		}
		p.resumed()
	}
}

// foundOut returns the outcome of a look that found another fence, or none. Its field looked says
// that no transaction was refused.
func foundOut(err error) outcome {
	v, p := refusal(err)
	if p == (epoch.Partition{}) {
		return outcome{action: claimAgain, err: err}
	}
	return outcome{action: v.action, err: err, looked: true}
}
