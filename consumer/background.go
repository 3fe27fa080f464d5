package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// Background is what [Handlers.Background] works with: one claim of one partition. Its
// methods are safe for concurrent use.
type Background[TX any] interface {
	// Partition is the partition that is claimed, and Epoch the claim's epoch,
	// to hand on to other systems.
	Partition() epoch.Partition
	Epoch() epoch.Epoch

	// Do runs apply in a transaction that commits only under this claim and
	// applies no message. It neither reads nor moves the position, and runs
	// beside the transactions of the partition's messages; see
	// [epoch.Sink.CommitHeld]. One call of a partition runs at a time, and as
	// many in all as there are committers; the others wait. So apply must not
	// call Do: it would wait for itself. The transaction is bounded by
	// [Options.BatchTimeout].
	//
	// An error of apply is returned, with everything rolled back; try again or
	// not. [epoch.ErrStale], [epoch.ErrInDoubt] and the sink's other refusals
	// end the claim, and so the context of the background work: what was in
	// doubt can be looked up under the next claim. Do does not try again by
	// itself.
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

// MaxAbove is the highest epoch above which [Background.Above] claims: 2^53. Up to there every
// receiver reads numbers in JSON as they are.
const MaxAbove epoch.Epoch = 1 << 53

// maxAboveStep is how many epochs one claim may pass over.
const maxAboveStep epoch.Epoch = 1 << 40

// errClaimEnded is what Do returns once its claim has ended.
var errClaimEnded = errors.New("consumer: the claim has ended, and with it the background work")

// background is the work beside the messages under one claim.
type background[TX any] struct {
	owner *ownership[TX]
	hold  epoch.Hold
	epoch epoch.Epoch

	ctx      context.Context // ends with the claim, or when the partition is revoked
	cancel   context.CancelFunc
	endClaim context.CancelCauseFunc
	returned chan struct{} // closed when the user's function has returned for good
	turn     chan struct{} // whoever runs a transaction holds it
	calls    gate          // of Do
}

// startBackground starts the background work under the claim just made.
func (o *ownership[TX]) startBackground() {
	if o.run.handlers.background == nil {
		return
	}
	f := o.fence
	b := &background[TX]{
		owner: o, hold: epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch: f.Epoch,
		endClaim: o.endClaim, returned: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	select {
	case <-o.applied: // of an earlier claim
	default:
	}
	b.ctx, b.cancel = o.untilRevoked(o.claim)
	o.background = b
	go b.run()
}

// stopBackground ends the background work, and waits for it.
func (o *ownership[TX]) stopBackground() {
	b := o.background
	if b == nil {
		return
	}
	o.background = nil
	b.cancel()
	late := afterAwake(2*o.timeout, func() {
		o.logger.Error("the background work goes on long after its context was cancelled; does it return when it is?", "epoch", b.epoch)
	})
	<-b.returned
	b.calls.close() // for a call of Do that nobody waited for
	late.stop()
}

// run calls the user's function until it returns.
func (b *background[TX]) run() {
	defer close(b.returned)
	wait := backoff.New(b.owner.run.RetryMin, b.owner.run.RetryMax)
	for b.ctx.Err() == nil {
		err := b.call()
		if err == nil {
			return
		}
		in := wait.Next()
		b.owner.logger.Error("the background work failed, starting it again", "epoch", b.epoch, "err", err, "retry_in", in)
		b.owner.wait(b.ctx, in)
	}
}

// call calls it once, on a goroutine that it may end.
func (b *background[TX]) call() error {
	returned := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { returned <- err }()
		err = guard(func() error {
			b.owner.run.handlers.background(b.ctx, b)
			return nil
		})
	}()
	return <-returned
}

func (b *background[TX]) Partition() epoch.Partition { return b.hold.Partition }
func (b *background[TX]) Epoch() epoch.Epoch         { return b.epoch }
func (b *background[TX]) Applied() <-chan struct{}   { return b.owner.applied }

func (b *background[TX]) Above(seen epoch.Epoch) error {
	if b.ended() || seen < b.epoch {
		return nil
	}
	if seen > MaxAbove || seen-b.epoch > maxAboveStep {
		return fmt.Errorf("consumer: claim %s above epoch %d: it is out of reach from %d; want at most %d, and at most %d more; lower it where it was seen",
			b.hold.Partition, seen, b.epoch, MaxAbove, maxAboveStep)
	}
	b.end(outcome{action: claimAbove, above: seen})
	return nil
}

func (b *background[TX]) ended() bool { return b.ctx.Err() != nil }

func (b *background[TX]) Do(ctx context.Context, apply func(context.Context, TX) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.ended() || !b.calls.enter() {
		return errClaimEnded
	}
	defer b.calls.leave()
	for _, turn := range []chan struct{}{b.turn, b.owner.loop.slot} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.ctx.Done():
			return errClaimEnded
		}
	}
	if b.ended() { // as it may have ended while both were due
		return errClaimEnded
	}
	err := b.commit(ctx, apply)
	b.judge(err)
	return err
}

// commit runs one transaction, whose context ends with the claim, with the
// caller's, and when its time is up.
func (b *background[TX]) commit(caller context.Context, apply func(context.Context, TX) error) error {
	timeout := b.owner.timeout
	ctx, cancel := context.WithTimeoutCause(b.owner.loop.base, timeout, errTimeout)
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	defer context.AfterFunc(b.ctx, func() { abort(errClaimEnded) })()
	defer context.AfterFunc(caller, func() { abort(context.Cause(caller)) })()
	overdue := Overdue{Partition: b.hold.Partition, Epoch: b.epoch, Timeout: timeout}
	defer b.owner.run.underWay.add(overdue, 0)()
	defer b.owner.run.watch([]Overdue{overdue}).stop()
	r := result{at: -1}
	began := time.Now()
	r.err = b.owner.run.sink.CommitHeld(ctx, b.hold, func(ctx context.Context, tx TX) error {
		r.called = true
		called := time.Now()
		defer func() { r.handling = time.Since(called) }()
		if r.handler = guard(func() error { return apply(ctx, tx) }); r.handler != nil {
			return &maskedError{r.handler}
		}
		return nil
	})
	r.took, r.timedOut = time.Since(began), r.err != nil && errors.Is(context.Cause(ctx), errTimeout)
	b.report(r)
	return r.err
}

// report tells observers of a transaction that has ended.
func (b *background[TX]) report(r result) {
	lost := b.owner.pending.lost.Err() != nil
	if lost {
		b.owner.caught.Store(true)
	}
	e := transacted([]trial{{partition: b.hold.Partition, lost: lost}}, r)
	e.Background = true
	b.owner.run.Observe(e)
}

// judge ends the claim if the sink's answer says so, as a verdict on messages
// would.
func (b *background[TX]) judge(err error) {
	v, refused := refusal(err)
	switch {
	case err == nil:
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		b.owner.run.endedTx(b.hold.Partition, err) // whatever the owner is at: never again
		b.end(outcome{action: haltForGood, err: err})
	case refused == b.hold.Partition:
		b.end(outcome{action: v.action, err: err})
	case errors.Is(err, epoch.ErrInDoubt):
		b.end(outcome{action: claimAgain, err: err})
	}
}

func (b *background[TX]) end(out outcome) {
	b.endClaim(&brokenClaimError{out})
	b.cancel()
}

// untilRevoked returns a context that ends with ctx or when the partition is
// revoked.
func (o *ownership[TX]) untilRevoked(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-o.tenure.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
