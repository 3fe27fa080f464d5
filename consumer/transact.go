package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// take is what one transaction takes of one partition.
type take[TX any] struct {
	*holding[TX]
	ms      []Message
	epoch   epoch.Epoch
	advance epoch.Advance
}

// attempt is what became of the handler's part of a transaction.
type attempt struct {
	called   bool  // the sink got as far as calling it
	err      error // the handler's
	take     int   // whose messages it failed on
	at       int   // which of them, or -1
	timedOut bool
	froze    time.Duration // for how long this process did not run meanwhile
}

// errTimeout is the cause of a transaction's end by Options.BatchTimeout.
var errTimeout = errors.New("transaction took longer than BatchTimeout")

// transact runs one transaction over what was picked of hs and settles each of
// them.
func (c *committer[TX]) transact(hs []*holding[TX]) {
	slices.SortFunc(hs, func(a, b *holding[TX]) int { return a.fence.Partition.Compare(b.fence.Partition) })
	takes := make([]take[TX], len(hs))
	advances := make([]epoch.Advance, len(hs))
	timeout, messages := hs[0].owner.timeout, 0
	for i, h := range hs {
		takes[i] = newTake(h)
		advances[i] = takes[i].advance
		timeout = min(timeout, h.owner.timeout)
		messages += len(takes[i].ms)
	}

	shared := !takes[0].probe.active()
	ctx, cancel := context.WithCancelCause(c.base)
	defer cancel(nil)
	if wait, bounded := c.lockWait(takes[0]); bounded {
		ctx = epoch.WithLockWait(ctx, wait)
	}
	ctx, done := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer done()
	for _, h := range hs {
		// One lost partition aborts them all: R13 leaves no time to sort it out.
		stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
		defer stop()
	}
	watch := c.watch(takes, timeout)
	defer watch.stop()
	defer c.goesOn(&underWay{takes[0].advance, len(takes) - 1, time.Now(), timeout})()

	began := time.Now()
	a := attempt{at: -1}
	returned := false
	defer func() {
		if !returned { // the handler is ending this goroutine, and the sink has rolled back
			a.err = errGoexit
			c.settle(takes, a, errGoexit, time.Since(began))
		}
	}()
	err := c.run.sink.Commit(ctx, advances, func(ctx context.Context, tx TX) error {
		a.called = true
		for i := range takes {
			a.take = i
			if at, err := c.handle(ctx, tx, &takes[i]); err != nil {
				a.err, a.at = err, at
				return &maskedError{err}
			}
		}
		return nil
	})
	returned = true
	took := time.Since(began)
	a.froze = watch.stop()
	a.timedOut = err != nil && errors.Is(context.Cause(ctx), errTimeout)
	if shared {
		c.resize(messages, a, err, took, timeout)
	}
	c.settle(takes, a, err, took)
}

// lockWait is how long the transaction that begins with t may wait for one lock,
// unless it is as long as the sink allows.
func (c *committer[TX]) lockWait(t take[TX]) (d time.Duration, bounded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refusals := 0
	if t.probe.active() {
		refusals = t.probe.refusals
	}
	return c.sizing.lockWait(refusals, rand.Float64())
}

// resize says what the outcome of a shared transaction means for the size of the
// next.
func (c *committer[TX]) resize(messages int, a attempt, err error, took, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.froze > 0 && err != nil: // which has nothing to do with the size
	case errors.Is(err, epoch.ErrTransient), errors.Is(err, epoch.ErrInDoubt):
		c.sizing.refused(messages, took)
	case a.timedOut:
		c.sizing.tooSlow(messages)
	default:
		c.sizing.applied(messages, took, timeout)
	}
}

func newTake[TX any](h *holding[TX]) take[TX] {
	ms := h.unapplied[:h.size]
	last := ms[len(ms)-1]
	return take[TX]{holding: h, ms: ms, epoch: h.fence.Epoch, advance: epoch.Advance{
		Partition:   h.fence.Partition,
		Claim:       h.fence.Claim,
		From:        h.fence.Next,
		To:          last.Offset + 1,
		LeaderEpoch: last.LeaderEpoch,
	}}
}

// handle calls the handler, or OnFailure for a message given up on.
func (c *committer[TX]) handle(ctx context.Context, tx TX, t *take[TX]) (at int, err error) {
	if given := t.probe.given; given != nil {
		return 0, guard(func() error { return c.run.OnFailure(ctx, tx, t.ms[0], t.epoch, given) })
	}
	return c.run.handle(ctx, tx, t.ms, t.epoch)
}

// watch reports a transaction that goes on long after its time is up, although
// this process runs: a handler that is deaf to its context. Nothing can be done
// about it from here. What it reports is copied, since its timer may fire as the
// transaction ends.
func (c *committer[TX]) watch(takes []take[TX], timeout time.Duration) *awake {
	overdue := make([]Overdue, len(takes))
	for i, t := range takes {
		overdue[i] = Overdue{Partition: t.advance.Partition, Epoch: t.epoch, From: t.advance.From, To: t.advance.To, Timeout: timeout}
	}
	return afterAwake(2*timeout, func() {
		for _, o := range overdue {
			c.run.log(o.Partition).Error("a transaction goes on long after its context ended; does the handler heed its context?",
				"epoch", o.Epoch, "from", o.From, "to", o.To, "batch_timeout", o.Timeout)
			c.run.Observer.Observe(o)
		}
	})
}

// settle decides for each partition of a transaction what its outcome means.
// The order of the cases matters: a refusal comes before doubt, doubt before
// blame.
func (c *committer[TX]) settle(takes []take[TX], a attempt, err error, took time.Duration) {
	switch refusal, i := refusedTake(takes, err); {
	case err == nil:
		for _, t := range takes {
			c.advanced(t, took)
		}

	case errors.Is(err, epoch.ErrEscaped):
		// What the handler wrote may be committed without the fence. Trying
		// again would write it again.
		c.finishAll(takes, outcome{end: escaped, err: err})

	case i >= 0:
		c.finish(takes[i].holding, refusal)
		c.otherwiseAgain(takes, i)

	case errors.Is(err, epoch.ErrInDoubt):
		c.doubt(takes, a, err)

	case anyLost(takes):
		c.otherwiseAgain(takes, -1) // the lost ones are leaving

	case !a.called: // the sink could not begin, which is no message's fault
		c.finishAll(takes, outcome{end: inDoubt, err: err})

	case a.err != nil:
		c.otherwiseAgain(takes, a.take)
		c.failed(takes[a.take], a, len(takes) > 1, err, took)

	default: // the database refused the commit, and did not say for whom
		for _, t := range takes {
			c.failed(t, a, len(takes) > 1, err, took)
		}
	}
}

// refusedTake returns what a fence's refusal means to the claim, and whose it
// is, or a negative index if none refused.
func refusedTake[TX any](takes []take[TX], err error) (outcome, int) {
	out, p := refusal(err)
	return out, slices.IndexFunc(takes, func(t take[TX]) bool { return t.advance.Partition == p })
}

// refusal returns what a fence's refusal means to a claim of the partition, and
// the zero outcome and partition for any other error.
func refusal(err error) (outcome, epoch.Partition) {
	var (
		stale   *epoch.StaleError
		moved   *epoch.MovedError
		missing *epoch.MissingError
	)
	switch {
	case errors.As(err, &stale):
		return outcome{end: refused, err: err, stale: stale}, stale.Partition
	case errors.As(err, &moved):
		return outcome{end: inDoubt, err: err}, moved.Partition
	case errors.As(err, &missing):
		return outcome{end: halted, err: err}, missing.Partition
	default:
		return outcome{}, epoch.Partition{}
	}
}

func anyLost[TX any](takes []take[TX]) bool {
	return slices.ContainsFunc(takes, func(t take[TX]) bool { return t.ctx.Err() != nil })
}

func (c *committer[TX]) finishAll(takes []take[TX], out outcome) {
	for _, t := range takes {
		c.finish(t.holding, out)
	}
}

// otherwiseAgain puts all back but the take at index except.
func (c *committer[TX]) otherwiseAgain(takes []take[TX], except int) {
	for i, t := range takes {
		if i != except {
			c.again(t.holding, 0)
		}
	}
}

// doubt has all partitions claimed again. Where the handler had failed before
// the connection was lost, the two may have to do with each other: the message
// is remembered, and does not share its next transaction.
func (c *committer[TX]) doubt(takes []take[TX], a attempt, err error) {
	alone := len(takes) == 1 && len(takes[0].ms) == 1
	for i, t := range takes {
		switch {
		case a.err != nil && i != a.take:
		case errors.Is(err, epoch.ErrUnhealthy) && alone:
			t.probe.halted()
			c.finish(t.holding, outcome{end: haltedInDoubt, err: err})
			continue
		case errors.Is(err, epoch.ErrUnhealthy):
			t.probe.failed(len(t.ms), a.at)
		case a.err != nil && a.froze == 0:
			if _, failure := t.blame(len(t.ms), a.at, len(takes) > 1, err); failure != nil {
				c.finish(t.holding, outcome{end: halted, err: failure})
				continue
			}
		}
		c.finish(t.holding, outcome{end: inDoubt, err: err})
	}
}

// failed settles a partition whose messages, or one of them, failed. err is the
// sink's word on it, a.err the handler's.
func (c *committer[TX]) failed(t take[TX], a attempt, shared bool, err error, took time.Duration) {
	n, cause := len(t.ms), err
	if a.err != nil {
		cause = a.err
	}
	var permanent *permanentError
	final := errors.As(cause, &permanent)
	switch {
	case errors.Is(err, epoch.ErrUnhealthy) && !final && t.probe.given == nil:
		c.unhealthy(t, n, a.at, shared, err)
		return
	case a.froze > 0 && !final:
		// What a freeze made late, or ended, is not the message's fault.
		err = fmt.Errorf("this process did not run for %v meanwhile: %w", a.froze.Round(time.Millisecond), err)
		c.again(t.holding, t.postpone(n, a.err != nil, shared, err, took))
		return
	case errors.Is(err, epoch.ErrTransient) && !final:
		c.again(t.holding, t.postpone(n, a.err != nil, shared, err, took))
		return
	case t.ms[0].Control && n == 1 && !shared: // nobody's message
		c.doubt([]take[TX]{t}, attempt{}, err)
		return
	case a.timedOut && (n > 1 || shared):
		// The message at hand when time ran out need not be the slow one.
		t.probe.tooSlow(n)
		c.again(t.holding, 0)
		return
	}
	in, failure := t.blame(n, a.at, shared, cause)
	if failure != nil {
		c.finish(t.holding, outcome{end: halted, err: failure})
		return
	}
	c.again(t.holding, in)
}

// unhealthy halts a partition whose first message cannot be applied in the state
// the database is in. Those before it are applied first.
func (c *committer[TX]) unhealthy(t take[TX], n, at int, shared bool, err error) {
	if n > 1 || shared {
		t.probe.failed(n, at)
		c.again(t.holding, 0)
		return
	}
	t.probe.halted()
	c.finish(t.holding, outcome{end: halted, err: err})
}

func (c *committer[TX]) advanced(t take[TX], took time.Duration) {
	failed := 0
	if t.probe.given != nil {
		failed = 1
	}
	h := t.holding
	if err := h.advanced(t.advance, len(t.ms)); err != nil {
		c.finish(h, outcome{end: inDoubt, err: err})
		return
	}
	c.mu.Lock()
	h.owner.side.passed(h.fence)
	c.mu.Unlock()
	h.owner.tenure.Mirror(h.fence)
	if failed == 0 {
		c.run.troubles.well(t.advance.Partition)
	}
	c.run.Observer.Observe(Advanced{
		Partition: t.advance.Partition, Epoch: t.epoch, From: t.advance.From, To: t.advance.To,
		Messages: count(t.ms), Failed: failed, Bytes: size(t.ms), Took: took,
	})
	if len(h.unapplied) == 0 {
		c.finish(h, outcome{})
		return
	}
	c.again(h, 0)
}

func count(ms []Message) int {
	n := 0
	for _, m := range ms {
		if !m.Control {
			n++
		}
	}
	return n
}

func size(ms []Message) int {
	n := 0
	for _, m := range ms {
		n += len(m.Key) + len(m.Value)
		for _, h := range m.Headers {
			n += len(h.Key) + len(h.Value)
		}
	}
	return n
}
