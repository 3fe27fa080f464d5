package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file groups the work of partitions into transactions: which partitions share the next one, which
// goes alone, and how many transactions are open. sizing.go decides how many messages they take. Nothing
// here decides about claims, blame or replays: each partition decides for itself what its answer means
// (apply.go).

// committer runs the transactions of the partitions of one shard. A partition submits work, waits for the
// answer, and submits again. Work in good order shares the transactions of the first lane. Work that is
// expected to fail, and replays, have lanes of their own, with one partition in each transaction, so that
// a message that fails or is slow delays no other partition.
type committer struct {
	run   *runner
	shard int
	base  context.Context // of every transaction
	slots chan struct{}   // one is held by each background transaction that runs
	wake  chan struct{}

	mu      sync.Mutex
	shared  lane
	alone   lane
	replays lane
	sizing  sizing
	width   width
	refused time.Time                // when a shared transaction was last refused
	awaited map[epoch.Partition]bool // have an answer, and have not said whether they submit more
	until   time.Time                // the end of the wait for them
}

// lane has the work that is ready, in the order in which it was submitted.
type lane struct {
	most  int // transactions at a time
	open  int
	queue []*work
}

// work is what a partition submits: messages to apply at its position. It is the committer's until it is
// answered.
type work struct {
	run      *runner
	fence    epoch.Fence     // the claim, and the position before the messages
	batch    Batch           // a transaction takes some or all of its messages, from the first on
	most     int             // but no more than so many
	again    bool            // its messages were narrowed down, and have failed together again
	failed   error           // if set, the first message is deferred, or OnFailure is called for it, instead of the handler
	replay   *replay         // set for the message of a dead letter
	trial    trial           // what is known of the first message
	refusals int             // transient failures of the first message, in a row
	timeout  time.Duration   // of its transaction
	lost     context.Context // whose end aborts its transaction
	answer   chan answer
}

// answer says what became of work.
type answer struct {
	none  bool // no transaction has begun, and none will
	part  *part
	tried []trial // of all partitions in the transaction
	of    int     // index of the partition in tried
	result
	verdicts func() []verdict // on all of tried

	abandoned bool  // the transaction runs on after its context has ended, and was given up
	hang      *hang // and it is the call for this partition that hangs
	several   bool  // or others beside it, or with it, and it waits for them
	place     place // of that call, the first if there are several
	last      int   // index of the message of the last
}

func newCommitter(base context.Context, r *runner, shard int) *committer {
	lanes := lane{most: r.Committers}
	return &committer{
		run: r, shard: shard, base: base, slots: make(chan struct{}, r.Committers), wake: make(chan struct{}, 1),
		shared: lanes, alone: lanes, replays: lanes, sizing: newSizing(r.MaxBatch, r.usual).beside(r.beside),
		width: width{most: r.Committers, now: r.Committers}, awaited: map[epoch.Partition]bool{},
	}
}

// LevelTrace is the level at which [Options.Logger] receives what partitions submit, and how each transaction
// has ended.
const LevelTrace = slog.LevelDebug - 4

// trace logs an event at LevelTrace: what a committer decides can be followed from a log alone.
func (c *committer) trace(what func() string) {
	if ctx := context.Background(); c.run.Logger.Enabled(ctx, LevelTrace) {
		c.run.Logger.Log(ctx, LevelTrace, what(), "shard", c.shard)
	}
}

// submit queues work. Its answer comes once, whatever happens.
func (c *committer) submit(w *work) {
	c.trace(func() string {
		return fmt.Sprintf("%s submits %d messages from %d on, to %d", w.fence.Partition, w.most, w.fence.Next, w.batch.Next)
	})
	c.mu.Lock()
	l := c.lane(w)
	l.queue = append(l.queue, w)
	delete(c.awaited, w.fence.Partition)
	c.mu.Unlock()
	waits.Notify(c.wake)
}

// submitsNothing says that a partition does not submit again at once. If it was the last one awaited, those who
// wait for it begin.
func (c *committer) submitsNothing(p epoch.Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.awaited[p] {
		return
	}
	if delete(c.awaited, p); len(c.awaited) == 0 {
		waits.Notify(c.wake)
	}
}

func (c *committer) lane(w *work) *lane {
	switch {
	case w.replay != nil:
		return &c.replays
	case w.trial.narrowed: // its transaction is expected to fail
		return &c.alone
	default:
		return &c.shared
	}
}

// replaysAtOnce reports whether the transaction of a replay would begin at once.
func (c *committer) replaysAtOnce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replays.open+len(c.replays.queue) < c.replays.most
}

// withdraw takes work back if its transaction has not begun. The answer comes in any case.
func (c *committer) withdraw(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lane(w)
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		w.answer <- answer{none: true}
	}
}

// serve begins transactions until ctx ends.
func (c *committer) serve(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-c.wake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if in := c.begin(time.Now()); in > 0 {
			timer.Reset(in)
		}
	}
}

// mostAwaited limits how long a transaction waits for partitions that have just had an answer. They need some
// microseconds to submit again, unless they are held up, as by the user's Observe.
const mostAwaited = time.Millisecond

// begin begins every transaction that can begin. Partitions that have just had an answer come first to submit
// again, so that they share a transaction: then begin returns for how long it waits for them at most.
func (c *committer) begin(now time.Time) (in time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := c.mostShared()
	if in = c.until.Sub(now); len(c.awaited) > 0 && in > 0 && most > 1 && len(c.shared.queue) < most {
		return in
	}
	clear(c.awaited) // nobody is waited for twice
	for {
		ws := c.pickShared()
		if len(ws) == 0 {
			break
		}
		c.transact(&c.shared, ws, c.sizing.capacity)
	}
	for _, l := range []*lane{&c.alone, &c.replays} {
		for ws := l.pick(1); len(ws) > 0; ws = l.pick(1) {
			c.transact(l, ws, c.run.MaxBatch)
		}
	}
	return 0
}

// pickShared takes work for a shared transaction, within the current size and the sink's bounds. The
// transactions that may still begin get equal parts of what is ready. What is left over comes first the
// next time.
func (c *committer) pickShared() []*work {
	l, most := &c.shared, c.mostShared()
	if free := l.most - l.open; free > 1 {
		most = min(most, (len(l.queue)+free-1)/free)
	}
	return l.pick(most)
}

// mostShared returns how many partitions may share a transaction.
func (c *committer) mostShared() int {
	if bound := c.run.bounds.Partitions; bound > 0 {
		return min(c.sizing.capacity, bound)
	}
	return c.sizing.capacity
}

// pick takes up to most partitions from a lane if one more transaction may begin. It drops the work of
// lost partitions, which would only abort the others.
func (l *lane) pick(most int) []*work {
	if l.open >= l.most {
		return nil
	}
	l.queue = slices.DeleteFunc(l.queue, func(w *work) bool {
		if w.lost.Err() == nil {
			return false
		}
		w.answer <- answer{none: true}
		return true
	})
	n := min(most, len(l.queue))
	picked := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	return picked
}

// transact begins a transaction of several partitions, in key order (R4), so that all processes
// lock fences in one order. The shortest timeout counts for all.
func (c *committer) transact(l *lane, ws []*work, capacity int) {
	slices.SortFunc(ws, func(a, b *work) int { return a.fence.Partition.Compare(b.fence.Partition) })
	t := &transaction{run: c.run, abandoned: make(chan struct{}), lane: l, beside: l.open > 0, timeout: ws[0].timeout, parts: make([]part, len(ws))}
	l.open++
	ready := make([]int, len(ws))
	for i, w := range ws {
		ready[i] = w.most
		t.timeout = min(t.timeout, w.timeout)
	}
	for i, n := range share(ready, capacity) {
		t.parts[i] = newPart(ws[i], n)
	}
	refusals := 0
	if l == &c.alone {
		refusals = ws[0].refusals
	}
	t.lockWait = c.sizing.lockWait(refusals, rand.Float64())
	c.start(t)
}

// start runs a transaction on its own goroutine, which a handler may end.
func (c *committer) start(t *transaction) {
	c.run.running.Add(1)
	t.release = sync.OnceFunc(c.run.running.Done)
	go func() {
		defer t.release()
		defer c.ended(t)
		t.commit(c.base, func() { c.abandon(t) })
	}()
}

// ended answers the partitions of a transaction. One that was abandoned has been answered before: its
// result is only looked at for a handler that ended the transaction by itself.
func (c *committer) ended(t *transaction) {
	if !c.close(t) {
		c.run.abandonedEnds(t)
		return
	}
	c.resize(t)
	c.trace(func() string { return fmt.Sprintf("%s ended: %v", t, t.result.err) })
	tried := t.trials()
	if t.parts[0].replay == nil {
		c.run.Observe(c.run.policy.transacted(tried, t.result))
	}
	verdicts := sync.OnceValue(func() []verdict { return c.run.policy.judge(tried, t.result) })
	c.answer(t, func(i int) answer {
		return answer{part: &t.parts[i], tried: tried, of: i, result: t.result, verdicts: verdicts}
	})
}

// close makes room for the next transaction. It reports whether t was not closed before.
func (c *committer) close(t *transaction) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.over {
		return false
	}
	t.over = true
	t.lane.open--
	return true
}

// resize records what a shared transaction says about the size of the next one, and about how many are open
// at a time: if it was beside others when it was refused, they may be why. A refusal by a
// fence and a failed handler say nothing about it: they count as applied, with the time that they
// took. Of those that were open together, one says that they are refused.
func (c *committer) resize(t *transaction) {
	if t.lane != &c.shared {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r, n := &t.result, t.messages(); {
	case r.froze > 0 && r.err != nil, errors.Is(r.err, epoch.ErrOwnTransaction): // unrelated to the size
	case r.err != nil && t.began.Before(c.refused):
	case errors.Is(r.err, epoch.ErrTransient), errors.Is(r.err, epoch.ErrInDoubt):
		c.refused = time.Now()
		if t.beside || t.lane.open > 0 {
			c.width.refused(r.took)
		} else {
			c.sizing.refused(n, r.took)
		}
	case errors.Is(r.err, epoch.ErrTooLarge):
		c.refused = time.Now()
		c.sizing.tooLarge(n, r.took)
	case r.timedOut:
		c.sizing.tooMany(n)
	default:
		c.sizing.applied(n, r.took, t.timeout)
		c.width.applied(r.took)
	}
	c.shared.most = c.width.now
}

// answer answers each partition of a transaction. There is exactly one answer to work, so the send never
// blocks.
func (c *committer) answer(t *transaction, of func(i int) answer) {
	c.mu.Lock()
	for i := range t.parts {
		c.awaited[t.parts[i].advance.Partition] = true
	}
	c.until = time.Now().Add(mostAwaited)
	c.mu.Unlock()
	for i := range t.parts {
		t.parts[i].answer <- of(i)
	}
	waits.Notify(c.wake)
}
