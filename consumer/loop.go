package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which partitions share the next transaction, which one goes alone, and which
// wait. How many messages they take is decided in sizing.go and bisection.go, and what the result
// means in verdict.go.

// loop runs the transactions of the partitions that are pinned to it, all of one shard. The
// goroutine of serve owns the loop's state, and that of its partitions while their claims are
// consumed. All other goroutines send events: tenures send batches and their end, transactions send
// results.
//
// A loop has two lanes with one transaction at a time each. Partitions in good order share the
// transactions of the first lane. Partitions that have just failed go through the second lane one
// by one, so that a failing or slow message does not delay other partitions.
type loop[TX any] struct {
	run    *runner[TX]
	shard  int
	base   context.Context // of every transaction; ends with the loop
	events chan event[TX]
	closed chan struct{} // closed once no partition is left
	slot   chan struct{} // held by the background transaction that runs

	// Owned by serve.
	held    map[*tenancy[TX]]*pending[TX]
	shared  lane[TX]
	alone   lane[TX]
	waiting []*pending[TX]
	sizing  sizing
	idle    idleCheck[TX]
	replays replays[TX]
	timer   *time.Timer
}

// lane holds the ready partitions, in the order in which they became ready.
type lane[TX any] struct {
	busy  bool
	queue []*pending[TX]
}

func newLoop[TX any](base context.Context, r *runner[TX], shard int) *loop[TX] {
	l := &loop[TX]{
		run: r, shard: shard, base: base, events: make(chan event[TX]), held: map[*tenancy[TX]]*pending[TX]{}, closed: make(chan struct{}), slot: make(chan struct{}, 1),
		sizing: newSizing(r.MaxBatch, r.usual), timer: time.NewTimer(time.Hour),
	}
	l.idle = newIdleCheck(l)
	return l
}

// serve is the loop. It waits for nothing but events: transactions, reads of fences and replays run
// on goroutines of their own, and their results come back as events.
func (l *loop[TX]) serve() {
	defer l.timer.Stop()
	defer l.idle.stop()
	for {
		select {
		case e := <-l.events: // first all events that are pending, so that they can share a transaction
			l.handle(e)
			continue
		default:
		}
		now := time.Now()
		l.wake(now)
		l.idle.start(now)
		l.startReady()
		l.arm(now)
		select {
		case e := <-l.events:
			l.handle(e)
		case <-l.idle.replaced:
			l.idle.sinkReplaced()
		case <-l.timer.C:
		case <-l.closed:
			return
		}
	}
}

// arm sets the timer to the first time at which something is due: a retry, or a look at idle
// fences.
func (l *loop[TX]) arm(now time.Time) {
	first := l.idle.due()
	for _, p := range l.waiting {
		if first.IsZero() || p.due.Before(first) {
			first = p.due
		}
	}
	if first.IsZero() {
		l.timer.Stop()
		return
	}
	l.timer.Reset(max(first.Sub(now), 1))
}

// holds reports whether p is still consumed here. A transaction or a look may end after its
// partition was detached, or was granted again with a new pending.
func (l *loop[TX]) holds(p *pending[TX]) bool { return l.held[p.tenancy] == p }

// detach hands a partition with nothing to apply back to its tenure, after the replay under way.
func (l *loop[TX]) detach(t *tenancy[TX], back chan<- *pending[TX]) {
	p := l.held[t]
	delete(l.held, t)
	l.dropReplays(p)
	if p.replaying {
		p.back = back
		return
	}
	back <- p
}

// offer queues the messages of a batch. The outcome is that all are applied, that the partition was
// revoked or lost before that, or what ended the claim. It comes after the transaction under way.
func (l *loop[TX]) offer(p *pending[TX], b Batch) {
	if p.claim.Err() != nil {
		p.finish(outcome{action: leave})
	} else if err := p.accept(b); err != nil {
		p.finish(outcome{action: halt, err: err})
	} else if p.done() { // a batch that moves nothing
		p.finish(outcome{action: advance})
	} else {
		l.ready(p)
	}
}

// revoke takes a partition out of its queue. A transaction under way is its last.
func (l *loop[TX]) revoke(p *pending[TX]) {
	switch p.state {
	case busy:
		p.revoked = true
		return
	case idle: // it has its outcome already
		return
	case waiting:
		l.waiting = without(l.waiting, p)
	case ready:
		lane := l.lane(p)
		lane.queue = without(lane.queue, p)
	}
	p.finish(outcome{action: leave})
}

// wake queues the partitions whose wait is over.
func (l *loop[TX]) wake(now time.Time) {
	l.waiting = slices.DeleteFunc(l.waiting, func(p *pending[TX]) bool {
		if p.due.After(now) {
			return false
		}
		l.ready(p)
		return true
	})
}

// finished settles a transaction: judge says what the result means for each partition, and each
// continues by itself.
func (l *loop[TX]) finished(t *transaction[TX], r result) {
	if t.shared {
		l.shared.busy = false
		l.resize(t, r)
	} else {
		l.alone.busy = false
	}
	trials := t.trials()
	l.run.Observe(transacted(trials, r))
	for i, v := range l.run.policy.judge(trials, r) {
		l.carryOut(v, t.parts[i], trials[i], r, len(trials) > 1)
	}
}

// carryOut does what the verdict says for one partition. The order matters: bisect learns first,
// because the wait depends on what it learnt, and the report needs the wait.
func (l *loop[TX]) carryOut(v verdict, did part[TX], t trial, r result, shared bool) {
	p := did.pending
	if t.lost {
		p.caught.Store(true)
	}
	if v.action == advance {
		l.committed(p, did, r.took)
		return
	}
	in := p.bisect.learn(v, t, r.handler != nil, shared)
	if v.finding == died {
		p.death = &death{t, v.err}
	}
	p.reportFailed(v, in, r.took)
	switch v.action {
	case retry:
		l.again(p, in)
		return
	case halt, haltInDoubt:
		p.bisect.halted()
	}
	p.finish(outcome{action: v.action, above: v.above, err: v.err})
}

// committed moves the position after a commit and continues with what is left of the batch. The
// error of move means that the sink broke its promise; a new claim then finds out where the
// position is (R5).
func (l *loop[TX]) committed(p *pending[TX], did part[TX], took time.Duration) {
	if err := p.move(did.advance, len(did.messages)); err != nil {
		p.finish(outcome{action: claimAgain, err: err})
		return
	}
	p.wakeBackground()
	// A copy, for tools that show lag: nothing reads it back (R8).
	p.tenure.Mirror(p.fence)
	p.reportAdvanced(did, took)
	if p.done() {
		p.finish(outcome{action: advance})
		return
	}
	if err := p.recall(); err != nil {
		p.finish(outcome{action: halt, err: err})
		return
	}
	l.again(p, 0)
}

// resize records what a shared transaction says about the size of the next one. A refusal by a
// fence and a failed handler say nothing about it: they count as applied, with the time that they
// took.
func (l *loop[TX]) resize(t *transaction[TX], r result) {
	switch {
	case r.froze > 0 && r.err != nil, errors.Is(r.err, epoch.ErrOwnTransaction): // unrelated to the size
	case errors.Is(r.err, epoch.ErrTransient), errors.Is(r.err, epoch.ErrInDoubt):
		l.sizing.refused(t.messages(), r.took)
	case errors.Is(r.err, epoch.ErrTooLarge):
		l.sizing.tooLarge(t.messages(), r.took)
	case r.timedOut:
		l.sizing.tooMany(t.messages())
	default:
		l.sizing.applied(t.messages(), r.took, t.timeout)
	}
}

// lane returns where a partition queues. One that is being narrowed down goes alone: its next
// transaction is expected to fail, and would take the others' messages with it.
func (l *loop[TX]) lane(p *pending[TX]) *lane[TX] {
	if p.bisect.active() {
		return &l.alone
	}
	return &l.shared
}

// ready queues a partition. The check of idle fences leaves it out: its own commit compares the
// fence.
func (l *loop[TX]) ready(p *pending[TX]) {
	p.state, p.quiet = ready, false
	lane := l.lane(p)
	lane.queue = append(lane.queue, p)
}

// again queues a partition after a transaction, or after a wait.
func (l *loop[TX]) again(p *pending[TX], in time.Duration) {
	switch {
	case p.revoked:
		p.finish(outcome{action: leave})
	case in <= 0:
		l.ready(p)
	default:
		p.state = waiting
		p.due = time.Now().Add(in)
		l.waiting = append(l.waiting, p)
	}
}

// finish answers the batch that was offered. There is exactly one answer for each offer, so the
// send never blocks.
func (p *pending[TX]) finish(out outcome) {
	p.state = idle
	p.revoked = false
	p.outcome <- out
}

func without[TX any](ps []*pending[TX], p *pending[TX]) []*pending[TX] {
	return slices.DeleteFunc(ps, func(q *pending[TX]) bool { return q == p })
}

// startReady begins every transaction that can begin. Replays come first: a replay begins only
// while no other transaction of its partition is open, and a partition with many messages always
// has one.
func (l *loop[TX]) startReady() {
	l.startReplay()
	if ps := l.pickShared(); len(ps) > 0 {
		l.transact(&l.shared, ps, l.sizing.capacity)
	}
	if ps := l.pick(&l.alone, 1); len(ps) > 0 {
		l.transact(&l.alone, ps, l.run.MaxBatch)
	}
}

// pickShared takes the ready partitions in good order, within the current size and the sink's
// bounds. Partitions that are left over are first the next time.
func (l *loop[TX]) pickShared() []*pending[TX] {
	most := l.sizing.capacity
	if bound := l.run.bounds.Partitions; bound > 0 {
		most = min(most, bound)
	}
	return l.pick(&l.shared, most)
}

// pick takes up to most partitions from a lane without a transaction. It drops lost partitions,
// which would only abort the others, and skips those whose dead letter is being replayed.
func (l *loop[TX]) pick(lane *lane[TX], most int) []*pending[TX] {
	if lane.busy {
		return nil
	}
	lane.queue = slices.DeleteFunc(lane.queue, func(p *pending[TX]) bool {
		if p.lease.Err() == nil {
			return false
		}
		p.finish(outcome{action: leave})
		return true
	})
	var picked []*pending[TX]
	lane.queue = slices.DeleteFunc(lane.queue, func(p *pending[TX]) bool {
		if p.replaying || len(picked) == most {
			return false
		}
		picked = append(picked, p)
		return true
	})
	return picked
}

// transact begins a transaction of several partitions, in key order (R4), so that all processes
// lock fences in one order. The shortest timeout counts for all.
func (l *loop[TX]) transact(lane *lane[TX], ps []*pending[TX], capacity int) {
	lane.busy = true
	slices.SortFunc(ps, func(a, b *pending[TX]) int { return a.fence.Partition.Compare(b.fence.Partition) })
	t := &transaction[TX]{run: l.run, shared: lane == &l.shared, timeout: ps[0].timeout}
	refusals := 0
	ready := make([]int, len(ps))
	for i, p := range ps {
		ready[i] = p.size()
	}
	takes := share(ready, capacity)
	for i, p := range ps {
		p.state, p.replayed = busy, false
		t.parts = append(t.parts, newPart(p, takes[i]))
		t.timeout = min(t.timeout, p.timeout)
	}
	if !t.shared {
		refusals = ps[0].bisect.refusals
	}
	t.lockWait = l.sizing.lockWait(refusals, rand.Float64())
	l.start(t)
}
