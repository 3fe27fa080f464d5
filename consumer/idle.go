package consumer

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// idleCheck looks now and then at the fences of a loop's partitions that have had
// nothing to commit for a while. A commit finds out by itself that its fence is
// not as it was; where none comes, nobody would notice that the sink went back, or
// that the claim is lost. The loop owns it.
type idleCheck[TX any] struct {
	loop *loop[TX]
	ctx  context.Context
	stop context.CancelFunc

	replaced <-chan struct{} // the shard's
	looking  bool
	all      bool      // look at all, not only at those that have been idle for a while
	next     time.Time // when to look
	rest     time.Time // not before
}

const (
	// lookAtOnce is how many fences are read at a time.
	lookAtOnce = 1000

	// lookRest is the least time between two looks at everything.
	lookRest = time.Second
)

func newIdleCheck[TX any](l *loop[TX]) idleCheck[TX] {
	c := idleCheck[TX]{loop: l, replaced: l.run.shards.ReplacedIn(l.shard)}
	c.ctx, c.stop = context.WithCancel(l.base)
	return c
}

func (c *idleCheck[TX]) add(p *pending[TX]) {
	p.quiet = false
	c.loop.held[p.tenancy] = p
	if len(c.loop.held) == 1 {
		c.next = time.Now().Add(c.interval())
	}
}

// lookAtAll has all idle partitions looked at now: there is reason to believe
// that the sink went back.
func (c *idleCheck[TX]) lookAtAll() { c.all = len(c.loop.held) > 0 }

func (c *idleCheck[TX]) sinkReplaced() {
	c.replaced = c.loop.run.shards.ReplacedIn(c.loop.shard) // before the look: what changes during it is news
	c.lookAtAll()
}

// interval is the time to the next look. A partition that falls idle is looked at
// within its term or a third more. Jitter keeps processes that started together
// apart.
func (c *idleCheck[TX]) interval() time.Duration {
	var least time.Duration
	for t := range c.loop.held {
		if term := t.tenure.Term(); least == 0 || term < least {
			least = term
		}
	}
	return least/3 + rand.N(least/3+1)
}

// due is when to look, or zero if there is nothing to look at.
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

// idler is an idle partition as it was before a look.
type idler[TX any] struct {
	p   *pending[TX]
	was epoch.Fence
}

// start looks, if it is time to: at the partitions that were idle the last time
// too, or at all that are.
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

// compare ends the claims of those whose fences are not as they were. A read that
// fails says nothing.
func (c *idleCheck[TX]) compare(idlers []idler[TX], now epoch.Fences, err error) {
	if err != nil {
		c.loop.run.Logger.Debug("could not look at the fences of idle partitions", "partitions", len(idlers), "err", err)
		return
	}
	for _, d := range idlers {
		p := d.p
		if !c.loop.holds(p) || p.state != idle || p.fence != d.was {
			continue // its next transaction tells, or the last one or a claim since has
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

// foundOut is what something found by a look means to the claim.
func foundOut(err error) outcome {
	v, p := refusal(err)
	if p == (epoch.Partition{}) {
		return outcome{action: claimAgain, err: err}
	}
	return outcome{action: v.action, err: err}
}
