package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/consumer/internal/stacks"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file runs the user's work beside the messages. It decides when the work begins and ends:
// with the claim, and before the next one. Its transactions check the claim and compare no
// position. What a refused one means is decided by refusal, in verdict.go.

// Background is one claim of one partition. A transaction of its Do waits for one of
// [Options.Committers] in its database, and [Options.BatchTimeout] limits it; see [epoch.Holding].
type Background[TX any] = epoch.Background[TX]

var errClaimEnded = errors.New("consumer: the claim has ended, and with it the background work")

// background is one of the user's functions under one claim. It ends with the claim: the next claim
// calls the function anew.
type background struct {
	owner   *partition
	number  int // of the function
	hold    epoch.Hold
	epoch   epoch.Epoch
	applied <-chan struct{}

	claim    *claim
	ctx      context.Context // ends with the claim, or when the partition is revoked
	cancel   context.CancelFunc
	returned chan struct{} // closed when the user's function has returned for good
	slot     chan struct{} // held by the running transaction of any background function of the partition
	calls    gate
	over     chan struct{} // closed when nothing of it runs any more
	hung     chan struct{}

	mu        sync.Mutex
	goroutine string // that the user's function runs on
	hang      *hang
}

// startBackground calls the functions of Handlers.Background under the claim that was just made.
// They share a slot, so that one transaction of theirs is open for a partition at a time.
func (p *partition) startBackground() {
	slot := make(chan struct{}, 1)
	for n := range p.run.backgrounds {
		b := p.newBackground(n, slot)
		p.background = append(p.background, b)
		go b.run()
		go b.outlast()
	}
}

// newBackground drops a value that Applied still holds from an earlier claim, so that work does not
// wake for messages that it has seen.
func (p *partition) newBackground(n int, slot chan struct{}) *background {
	applied := p.applied[n]
	select {
	case <-applied: // of an earlier claim
	default:
	}
	f := p.fence
	b := &background{
		owner: p, number: n, hold: epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch: f.Epoch, applied: applied,
		claim: p.claim, returned: make(chan struct{}), slot: slot,
		over: make(chan struct{}), hung: make(chan struct{}),
	}
	b.ctx, b.cancel = p.untilRevoked(p.claim)
	return b
}

// outlast closes over once the work and its transactions have ended.
func (b *background) outlast() {
	<-b.returned
	<-b.ctx.Done()
	b.calls.close() // for a call of Do that nobody waited for
	close(b.over)
}

// stopBackground ends the background work. If the work hangs, the partition is given up.
func (p *partition) stopBackground() {
	works := p.background
	if works == nil {
		return
	}
	p.background = nil
	for _, b := range works {
		b.cancel()
	}
	ended := time.Now()
	late := make(chan struct{})
	count := waits.AfterAwake(p.run.hangTimeout(p.timeout), func() { close(late) })
	defer count.Stop()
	for _, b := range works {
		select {
		case <-b.over:
			continue
		default: // it may have returned before another was late
		}
		select {
		case <-b.over:
		case <-b.hung:
			p.hang = b.hang
		case <-late:
			b.mu.Lock()
			goroutine := b.goroutine
			b.mu.Unlock()
			p.hang = b.hangs(ended, goroutine, FunctionBackground)
		}
	}
}

// hangs reports the work as hung, once, and keeps it listed until nothing of it runs any more.
// Another process may have the partition meanwhile: what the work still does is refused by the
// sink.
func (b *background) hangs(since time.Time, goroutine string, f Function) *hang {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hang != nil {
		return b.hang
	}
	b.hang = b.owner.run.hangs(Overdue{
		Partition: b.hold.Partition, Epoch: b.epoch, Timeout: b.owner.timeout,
		Function: f, Offset: -1, Since: since, Stack: stacks.Of(goroutine),
	}, goroutine)
	close(b.hung)
	go func(h *hang) {
		<-b.over
		b.owner.run.returned(h)
	}(b.hang)
	return b.hang
}

// run calls the user's function, and again after a panic or a Goexit, until it returns.
func (b *background) run() {
	defer close(b.returned)
	wait := waits.New(b.owner.run.RetryMin, b.owner.run.RetryMax)
	for b.ctx.Err() == nil {
		err := b.call()
		if err == nil {
			return
		}
		in := wait.Next()
		b.owner.logger.Error("the background work failed, starting it again", "epoch", b.epoch, "err", err, "retry_in", in)
		b.owner.waitOr(b.ctx, in, nil)
	}
}

// call calls the user's function on a goroutine of its own, which the function may end.
func (b *background) call() error {
	returned := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { returned <- err }()
		b.mu.Lock()
		b.goroutine = stacks.Name()
		b.mu.Unlock()
		err = guard(func() error {
			b.owner.run.effects.background(b.ctx, b.number, b)
			return nil
		})
	}()
	return <-returned
}

func (b *background) Partition() epoch.Partition { return b.hold.Partition }
func (b *background) Epoch() epoch.Epoch         { return b.epoch }
func (b *background) Applied() <-chan struct{}   { return b.applied }

// wakeBackground tells the background work that a handler's writes have committed.
func (p *partition) wakeBackground() {
	for _, applied := range p.applied {
		waits.Notify(applied)
	}
}

// Above cannot be used to take a partition away from its owner: the claim that follows needs a
// confirmation of the source (R2), and a zombie gets none.
func (b *background) Above(seen epoch.Epoch) error {
	if b.ended() || seen < b.epoch {
		return nil
	}
	if err := epoch.CheckAbove(b.hold.Partition, b.epoch, seen); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	b.end(outcome{action: claimAbove, above: seen})
	return nil
}

func (b *background) ended() bool { return b.ctx.Err() != nil }

// commitHeld is [epoch.CommitHeld] for a function of the user's that call has to call.
type commitHeld func(ctx context.Context, o epoch.TxOptions, call func(func() error) error) error

// do takes two slots, first that of the partition and then one of the committer, always in this order,
// so that two calls never wait for each other. A call that waits holds no transaction open.
func (b *background) do(ctx context.Context, commit commitHeld) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.ended() || !b.calls.enter() {
		return errClaimEnded
	}
	defer b.calls.leave()
	var free func()
	for _, slot := range []chan struct{}{b.slot, b.owner.committer.slots} {
		select {
		case slot <- struct{}{}:
			free = sync.OnceFunc(func() { <-slot })
			defer free()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.ctx.Done():
			return errClaimEnded
		}
	}
	if b.ended() { // select chooses at random if both are ready
		return errClaimEnded
	}
	err := b.commit(ctx, commit, free)
	b.judge(err)
	return err
}

// commit runs one transaction. Its context ends with the claim, with the caller's context, and at
// the timeout. If the transaction is abandoned, commit calls free so that others can begin.
func (b *background) commit(caller context.Context, commit commitHeld, free func()) error {
	timeout := b.owner.timeout
	abandoned, cut := context.WithCancel(context.Background())
	defer cut()
	ctx, cancel := context.WithTimeoutCause(b.owner.committer.base, timeout, errTimeout)
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	defer context.AfterFunc(b.ctx, func() { abort(errClaimEnded) })()
	defer context.AfterFunc(caller, func() { abort(context.Cause(caller)) })()
	defer b.owner.run.underWay.Done(b.owner.run.underWay.Add(&aside.Transaction{Partition: b.hold.Partition, Timeout: timeout}))
	r := result{at: -1}
	began, goroutine := time.Now(), stacks.Name()
	var under underCall
	defer under.abandon() // a deadline that passes later abandons nothing
	defer waits.AfterEnd(ctx, b.owner.run.hangTimeout(timeout), func() {
		calls, open := under.abandon()
		switch {
		case !open:
			return
		case len(calls) > 0:
			b.end(outcome{action: abandon, hang: b.hangs(began, goroutine, FunctionBackground)})
		default:
			b.end(outcome{action: claimAgain, err: fmt.Errorf("%w: %w", epoch.ErrInDoubt, errHung)})
			b.hangs(began, goroutine, FunctionSink)
		}
		cut()
		free()
	}).Stop()
	r.err = commit(ctx, epoch.TxOptions{Abandoned: abandoned}, func(apply func() error) error {
		if !under.enter(0, goroutine) {
			return epoch.ErrAbandoned
		}
		defer under.leave(0)
		r.called = true
		called := time.Now()
		defer func() { r.handling = time.Since(called) }()
		if r.handler = guard(apply); r.handler != nil {
			return &maskedError{r.handler}
		}
		return nil
	})
	r.took, r.timedOut = time.Since(began), r.err != nil && errors.Is(context.Cause(ctx), errTimeout)
	b.report(r)
	return r.err
}

// report sends the event of a transaction, and notes that one was open if the lease is lost by now.
func (b *background) report(r result) {
	lost := b.owner.lease.Err() != nil
	if lost {
		b.owner.caught.Store(true)
	}
	e := transacted([]trial{{partition: b.hold.Partition, lost: lost}}, r)
	e.Background = true
	b.owner.run.Observe(e)
}

// judge ends the claim if the sink's answer says that it is over or in doubt. It decides in the
// order of policy.judge, but blames nobody: an error of the work itself goes to the caller of Do
// alone.
func (b *background) judge(err error) {
	v, refused := refusal(err)
	switch {
	case err == nil:
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		b.owner.run.endedTx(b.hold.Partition, err) // the partition stays halted, even if the claim has ended already
		b.end(outcome{action: haltForGood, err: err})
	case refused == b.hold.Partition:
		b.end(outcome{action: v.action, above: v.above, err: err})
	case errors.Is(err, epoch.ErrInDoubt):
		b.end(outcome{action: claimAgain, err: err, beside: true})
	}
}

// end ends the claim: the context of the work ends, and no further transaction of messages begins.
func (b *background) end(out outcome) {
	b.claim.breakWith(out)
	b.cancel()
}
