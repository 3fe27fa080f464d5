package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Beside is what [Options.Beside] works with: one claim of one partition. Its
// methods are safe for concurrent use.
type Beside[TX any] interface {
	// Partition is the partition that is claimed, and Epoch the claim's epoch,
	// to hand on to other systems.
	Partition() epoch.Partition
	Epoch() epoch.Epoch

	// Do runs apply in a fenced transaction that applies no message: it
	// commits only under this claim, and leaves the position where it is. It
	// waits for the transaction of the partition's messages under way, if any,
	// and takes turns with the next ones. So neither a handler nor apply may
	// call Do: it would wait for itself. The transaction is bounded by
	// [Options.BatchTimeout].
	//
	// An error of apply is returned, with everything rolled back; try again or
	// not. [epoch.ErrStale], [epoch.ErrInDoubt] and the sink's other refusals
	// end the claim, and so the context of Beside: what was in doubt can be
	// looked up under the next claim. Do does not try again by itself.
	Do(ctx context.Context, apply func(ctx context.Context, tx TX) error) error

	// Above is for when another system has refused the claim's epoch because it has
	// seen a higher one, which is seen: it ends the claim, and the next one's epoch is above
	// that. As for every claim the source confirms the lease first, so a process that has
	// lost the partition makes none. An error means that nothing is done, because seen is out of
	// reach: more than [MaxAbove] or, lest a mistake uses them up, 2^40 epochs away. Then it
	// has to be lowered where it was seen.
	Above(seen epoch.Epoch) error

	// Applied receives a value after a transaction has committed that moved the
	// partition's position. Several may come as one.
	Applied() <-chan struct{}
}

// MaxAbove is the highest epoch above which [Beside] claims: 2^53. Up to there every
// receiver reads numbers in JSON as they are.
const MaxAbove epoch.Epoch = 1 << 53

// maxAboveStep is how many epochs one claim may pass over.
const maxAboveStep epoch.Epoch = 1 << 40

// errClaimEnded is what Do returns once its claim has ended.
var errClaimEnded = errors.New("consumer: the claim has ended, and with it the work beside the messages")

// side is the work beside the messages of one claim. Its transactions and those
// of the messages take turns, as both start from the fence's position.
type side[TX any] struct {
	owner    *ownership[TX]
	ctx      context.Context // of the claim
	cancel   context.CancelFunc
	ended    chan struct{} // closed when Options.Beside has returned for good
	applied  chan struct{}
	underWay sync.WaitGroup // transactions

	// Guarded by the committer's mutex.
	fence     epoch.Fence // as last claimed and advanced
	queue     []*work[TX]
	messages  bool     // a transaction of the messages is under way
	working   bool     // one beside them is
	turn      bool     // of the queue: the last transaction was one of the messages
	skipped   bool     // another partition's work was begun first, though later in line
	broken    *outcome // what ended the claim
	interrupt func()   // ends the read under way
}

// work is one call of Do.
type work[TX any] struct {
	ctx   context.Context
	apply func(context.Context, TX) error
	done  chan error
}

// beside starts the work beside the messages under the claim just made.
func (o *ownership[TX]) beside(ctx context.Context) {
	if o.run.Beside == nil {
		return
	}
	s := &side[TX]{owner: o, fence: o.fence, ended: make(chan struct{}), applied: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	o.committer.mu.Lock()
	o.side = s
	o.committer.mu.Unlock()
	go s.run()
	go func() {
		select {
		case <-o.tenure.Draining():
			s.cancel()
		case <-s.ctx.Done():
		}
	}()
}

// run calls Options.Beside until it returns.
func (s *side[TX]) run() {
	defer close(s.ended)
	wait := newRetryWait(s.owner.run.RetryMin, s.owner.run.RetryMax)
	for s.ctx.Err() == nil {
		returned := make(chan error, 1)
		go func() {
			err := errGoexit
			defer func() { returned <- err }()
			err = guard(func() error {
				s.owner.run.Beside(s.ctx, s)
				return nil
			})
		}()
		err := <-returned
		if err == nil {
			return
		}
		in := wait.next()
		s.owner.logger.Error("the work beside the messages failed, starting it again", "epoch", s.Epoch(), "err", err, "retry_in", in)
		s.owner.wait(s.ctx, in)
	}
}

// endBeside ends the work beside the messages, and waits for it.
func (o *ownership[TX]) endBeside() {
	s := o.side
	if s == nil {
		return
	}
	s.cancel()
	o.committer.closeSide(s)
	late := afterAwake(2*o.timeout, func() {
		o.logger.Error("the work beside the messages goes on long after its context ended; does it heed its context?", "epoch", s.Epoch())
	})
	<-s.ended
	s.underWay.Wait() // for a call of Do that Beside did not wait for
	late.stop()
	o.committer.mu.Lock()
	o.side = nil
	o.committer.mu.Unlock()
}

// whileClaimed returns a context that ends when work beside the messages breaks
// the claim, or with ctx.
func (o *ownership[TX]) whileClaimed(ctx context.Context) context.Context {
	if o.side == nil || o.side.ctx.Err() != nil {
		return ctx
	}
	return o.side.ctx
}

func (s *side[TX]) Partition() epoch.Partition { return s.owner.partition }

func (s *side[TX]) Epoch() epoch.Epoch {
	s.owner.committer.mu.Lock()
	defer s.owner.committer.mu.Unlock()
	return s.fence.Epoch
}

func (s *side[TX]) Above(seen epoch.Epoch) error {
	c := s.owner.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.ctx.Err() != nil || seen < s.fence.Epoch:
		return nil
	case seen > MaxAbove || seen-s.fence.Epoch > maxAboveStep:
		return fmt.Errorf("consumer: claim %s above epoch %d: it is out of reach from %d; want at most %d, and at most %d more; lower it where it was seen",
			s.owner.partition, seen, s.fence.Epoch, MaxAbove, maxAboveStep)
	}
	c.breakClaim(s, outcome{end: surpassed, above: seen})
	return nil
}

func (s *side[TX]) Applied() <-chan struct{} { return s.applied }

func (s *side[TX]) Do(ctx context.Context, apply func(context.Context, TX) error) error {
	w := &work[TX]{ctx: ctx, apply: apply, done: make(chan error, 1)}
	c := s.owner.committer
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !c.submit(s, w) {
		return errClaimEnded
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	if c.recall(s, w) {
		return context.Cause(ctx)
	}
	return <-w.done // it ends, as its context has
}

// mayGo reports whether the messages may have the next transaction. They let
// the queue have its turn, unless it would wait for another partition's work that
// takes its time; but not again and again. The committer's mutex is held, as for
// the following.
func (s *side[TX]) mayGo() bool {
	switch {
	case s == nil:
		return true
	case s.working:
		return false
	default:
		return !s.turn || len(s.queue) == 0 || s.owner.committer.slow && !s.skipped
	}
}

// mayWork reports whether the queue may have the next transaction.
func (s *side[TX]) mayWork() bool {
	h := s.owner.holding
	return !s.messages && !s.working && (s.turn || h == nil || h.state != ready)
}

// begun and settled enclose a transaction of the messages.
func (s *side[TX]) begun() {
	if s != nil {
		s.messages = true
	}
}

func (s *side[TX]) settled(c *committer[TX]) {
	if s == nil {
		return
	}
	s.messages, s.turn = false, true
	if len(s.queue) > 0 {
		c.besides.signal()
	}
}

// moved notes where the fence stands.
func (s *side[TX]) moved(f epoch.Fence) {
	if s != nil {
		s.fence = f
	}
}

// passed is moved for a transaction of messages.
func (s *side[TX]) passed(f epoch.Fence) {
	if s == nil {
		return
	}
	s.fence = f
	select {
	case s.applied <- struct{}{}:
	default:
	}
}

// submit queues w, unless the claim has ended.
func (c *committer[TX]) submit(s *side[TX], w *work[TX]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.queue = append(s.queue, w)
	if len(s.queue) == 1 {
		c.sides = append(c.sides, s)
	}
	c.besides.signal()
	return true
}

// recall takes w back unless it is under way.
func (c *committer[TX]) recall(s *side[TX], w *work[TX]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(s.queue, w)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	c.tidy(s)
	return true
}

// closeSide refuses what is queued. What may come is refused by its context,
// which has ended.
func (c *committer[TX]) closeSide(s *side[TX]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse(s)
}

func (c *committer[TX]) refuse(s *side[TX]) {
	for _, w := range s.queue {
		w.done <- errClaimEnded
	}
	s.queue = nil
	c.tidy(s)
}

// tidy leaves only those in c.sides that have something queued, and lets the
// messages go on whose turn it was not.
func (c *committer[TX]) tidy(s *side[TX]) {
	if len(s.queue) == 0 {
		c.sides = slices.DeleteFunc(c.sides, func(t *side[TX]) bool { return t == s })
		c.shared.signal()
		c.alone.signal()
	}
}

// pickBeside takes one piece of work of a partition whose turn it is.
func (c *committer[TX]) pickBeside() (s *side[TX], w *work[TX], at epoch.Fence) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.sides, (*side[TX]).mayWork)
	if i < 0 {
		return nil, nil, at
	}
	for _, t := range c.sides[:i] {
		t.skipped = true
	}
	s = c.sides[i]
	c.sides = append(slices.Delete(c.sides, i, i+1), s) // the others first, the next time
	w = s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	s.working, s.skipped = true, false
	s.underWay.Add(1)
	if len(s.queue) == 0 {
		c.sides = c.sides[:len(c.sides)-1]
	}
	return s, w, s.fence
}

// workBeside runs one transaction beside the messages, and reports whether there
// was one to run.
func (c *committer[TX]) workBeside() bool {
	s, w, at := c.pickBeside()
	if s == nil {
		return false
	}
	ctx, cancel := context.WithTimeoutCause(c.base, s.owner.timeout, errTimeout)
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	defer context.AfterFunc(s.ctx, func() { abort(errClaimEnded) })()
	defer context.AfterFunc(w.ctx, func() { abort(context.Cause(w.ctx)) })()

	here := epoch.Advance{Partition: at.Partition, Claim: at.Claim, From: at.Next, To: at.Next, LeaderEpoch: at.LeaderEpoch}
	defer c.goesOn(&underWay{here, 0, time.Now(), s.owner.timeout})()
	defer c.watch([]take[TX]{{advance: here, epoch: at.Epoch}}, s.owner.timeout).stop()
	defer time.AfterFunc(s.owner.timeout/16, func() { c.slowBeside(s) }).Stop()
	err := errGoexit
	defer func() { c.workedBeside(s, w, err) }()
	err = c.run.sink.Commit(ctx, []epoch.Advance{here}, func(ctx context.Context, tx TX) error {
		if err := guard(func() error { return w.apply(ctx, tx) }); err != nil {
			return &maskedError{err}
		}
		return nil
	})
	return true
}

// slowBeside has the messages of the other partitions go on.
func (c *committer[TX]) slowBeside(s *side[TX]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.working {
		return // the timer fired as the work ended
	}
	c.slow = true
	c.shared.signal()
	c.alone.signal()
}

// workedBeside says what the outcome means, as settle does for the messages.
func (c *committer[TX]) workedBeside(s *side[TX], w *work[TX], err error) {
	defer s.underWay.Done()
	takes := []take[TX]{{advance: epoch.Advance{Partition: s.owner.partition}}}
	refusal, i := refusedTake(takes, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.working, s.turn, c.slow = false, false, false
	switch {
	case err == nil:
	case errors.Is(err, epoch.ErrEscaped):
		c.run.escape(s.owner.partition, err) // whatever the owner is at: never again
		c.breakClaim(s, outcome{end: escaped, err: err})
	case i >= 0:
		c.breakClaim(s, refusal)
	case errors.Is(err, epoch.ErrInDoubt):
		c.breakClaim(s, outcome{end: inDoubt, err: err})
	}
	w.done <- err
	c.shared.signal()
	c.alone.signal()
	c.besides.signal()
}

// breakClaim ends the claim: the owner gets out, whatever it waits for.
func (c *committer[TX]) breakClaim(s *side[TX], out outcome) {
	if s.broken != nil {
		out.above = max(out.above, s.broken.above)
	}
	s.broken = &out
	s.cancel()
	c.refuse(s)
	if h := s.owner.holding; h != nil && (h.state == ready || h.state == waiting) {
		c.takeBack(h)
		c.end(h, out)
		return
	}
	if s.interrupt != nil {
		s.interrupt()
	}
}
