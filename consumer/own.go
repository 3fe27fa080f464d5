package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/epochfence/epochfence/epoch"
)

// How a claim's time with a partition ends: errLeft, an [epoch.StaleError], or
// one of the two types below.

// errLeft: the partition was asked back or lost, and nothing is under way.
var errLeft = errors.New("partition left")

// reclaimError: what the sink holds is not known. Claim again (R5).
type reclaimError struct{ err error }

func (e *reclaimError) Error() string { return e.err.Error() }
func (e *reclaimError) Unwrap() error { return e.err }

// haltError: the partition cannot go on. forever says that trying again can do
// harm.
type haltError struct {
	err     error
	forever bool
}

func (e *haltError) Error() string { return e.err.Error() }
func (e *haltError) Unwrap() error { return e.err }

// ownership is one tenure as the consumer sees it.
type ownership[TX any] struct {
	*runner[TX]
	tenure    Tenure
	committer *committer[TX]
	partition epoch.Partition
	logger    *slog.Logger
	timeout   time.Duration // of one transaction

	fence    epoch.Fence // as last claimed and advanced; zero before the first claim
	progress bool        // since the last wait
	halts    backoff.BackOff
	retries  backoff.BackOff
}

// own spends one tenure: it claims the partition, consumes until something
// happens, and claims again, until the source takes the partition back.
func (r *runner[TX]) own(ctx context.Context, t Tenure) {
	timeout := r.BatchTimeout
	if timeout == 0 {
		timeout = t.Term() / 2
	}
	if timeout >= t.Term() {
		r.stop(&fatalError{batchTimeoutTooLong(t.Origin(), timeout, t.Term())})
		return
	}
	p := t.Origin().Partition
	o := &ownership[TX]{
		runner: r, tenure: t, committer: r.pin(), partition: p, logger: r.log(p), timeout: timeout,
		halts:   newBackoff(r.HaltMin, r.HaltMax),
		retries: newBackoff(r.RetryMin, r.RetryMax),
	}
	defer r.unpin(o.committer)
	for o.running(ctx) {
		err := o.claimAndConsume(ctx)
		if errors.Is(err, ErrLost) {
			o.logger.Info("lost", "epoch", o.fence.Epoch, "next", o.fence.Next, "cause", err)
			return
		}
		if again, in := o.report(err, o.running(ctx)); !again || !o.wait(ctx, in) {
			break
		}
	}
	o.leave(ctx)
}

// running reports whether the tenure may still make claims.
func (o *ownership[TX]) running(ctx context.Context) bool {
	select {
	case <-o.tenure.Draining():
		return false
	case <-ctx.Done():
		return false
	default:
		return true
	}
}

// claimAndConsume returns when the claim it made is over, with the reason.
func (o *ownership[TX]) claimAndConsume(ctx context.Context) error {
	began := time.Now()
	claiming, done := o.claiming(ctx)
	got, seen, err := o.claim(claiming, o.tenure, o.fence.Epoch > 0)
	done()
	if err != nil {
		return err
	}
	o.fence = got
	o.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	o.logger.Info("claimed", "epoch", got.Epoch, "claim", got.Claim, "next", got.Next,
		"replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	o.Observer.Observe(Claimed{Fence: got, Seen: seen, Took: time.Since(began)})
	return o.consume(ctx)
}

// claiming returns the context of one attempt to claim. It is bounded, and ends
// when the partition is asked back: a claim not made by then is not worth it.
func (o *ownership[TX]) claiming(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	go func() {
		select {
		case <-o.tenure.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// consume reads from the fence's position and has the committer apply what
// comes, until the read ends or something goes wrong.
func (o *ownership[TX]) consume(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := newHolding(ctx, o)
	defer func() {
		o.progress = o.progress || h.fence.Next > o.fence.Next
		o.fence = h.fence
	}()
	for ms, err := range o.tenure.Read(ctx, h.fence) {
		if err != nil {
			return &haltError{err: err}
		}
		if err := inOrder(h.fence, ms); err != nil {
			return &haltError{err: err}
		}
		if err := o.committer.apply(h, ms); err != nil {
			return err
		}
	}
	if !o.running(ctx) {
		return errLeft
	}
	return &reclaimError{errors.New("the source ended the read before the partition was asked back")}
}

// inOrder checks what the source promises: nothing below the position, nothing
// twice.
func inOrder(f epoch.Fence, ms []Message) error {
	next := f.Next
	for _, m := range ms {
		if m.Offset < next {
			return &PositionError{Partition: f.Partition, Kind: ErrOutOfOrder, Position: next, Found: m.Offset}
		}
		next = m.Offset + 1
	}
	return nil
}

// report says why a claim ended, and whether and when to make another. A tenure
// that is over makes none, but a transaction that was refused or is in doubt is
// news all the same.
func (o *ownership[TX]) report(err error, running bool) (again bool, in time.Duration) {
	if o.progress {
		o.halts.Reset()
		o.retries.Reset()
		o.progress = false
	}
	var (
		stale       *epoch.StaleError
		reclaim     *reclaimError
		halt        *haltError
		unconfirmed *unconfirmedError
	)
	switch {
	case errors.As(err, &stale):
		o.stale(stale)
		return running, o.retries.NextBackOff()
	case errors.As(err, &reclaim):
		o.logger.Warn("in doubt", "epoch", o.fence.Epoch, "next", o.fence.Next, "err", err, "claiming_again", running)
		o.Observer.Observe(InDoubt{Partition: o.partition, Epoch: o.fence.Epoch, Err: err})
		return running, o.retries.NextBackOff()
	case !running:
		return false, 0
	case errors.As(err, &unconfirmed):
		in = o.retries.NextBackOff()
		o.logger.Info("lease not confirmed, asking again", "err", err, "retry_in", in)
		return true, in
	case errors.As(err, &halt) && halt.forever:
		o.logger.Error("halted until restarted", "next", o.fence.Next, "err", err)
		o.Observer.Observe(Halted{Partition: o.partition, Next: o.fence.Next, Err: err})
		return true, 0
	case errors.As(err, &halt) || needsPerson(err):
		in = o.halts.NextBackOff()
		o.logger.Error("halted", "next", o.fence.Next, "err", err, "retry_in", in)
	default: // the sink or the source could not be asked
		in = o.retries.NextBackOff()
		o.logger.Warn("not claimed, trying again", "err", err, "retry_in", in)
	}
	o.Observer.Observe(Halted{Partition: o.partition, Next: o.fence.Next, Err: err, RetryIn: in})
	return true, in
}

// needsPerson tells the refusals of a claim that no waiting resolves from those
// that pass.
func needsPerson(err error) bool {
	return errors.Is(err, epoch.ErrLogChanged) || errors.Is(err, epoch.ErrForeignLease) || errors.Is(err, epoch.ErrMissing)
}

// stale reports a refusal: one line, with both claims. A claim that lost the
// race for the swap is no news: it never owned anything.
func (o *ownership[TX]) stale(err *epoch.StaleError) {
	if err.Ours != o.fence.Claim {
		o.logger.Debug("another claim came first", "claim", err.Held.Claim, "epoch", err.Held.Epoch, "owner", err.Held.Owner)
		return
	}
	o.logger.Warn("stale: the partition belongs to a later claim; rolled back",
		"epoch", o.fence.Epoch, "claim", o.fence.Claim, "next", o.fence.Next,
		"held_epoch", err.Held.Epoch, "held_claim", err.Held.Claim, "held_owner", err.Held.Owner, "held_next", err.Held.Next)
	o.Observer.Observe(Stale{Ours: o.fence, Held: err.Held})
}

// wait returns true after d, or false when the tenure is over. Zero waits for
// that.
func (o *ownership[TX]) wait(ctx context.Context, d time.Duration) bool {
	var elapsed <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-elapsed:
		return true
	case <-o.tenure.Draining():
		return false
	case <-ctx.Done():
		return false
	}
}

// leave reports how the tenure ended.
func (o *ownership[TX]) leave(ctx context.Context) {
	if ctx.Err() != nil {
		o.logger.Info("lost", "epoch", o.fence.Epoch, "next", o.fence.Next, "cause", context.Cause(ctx))
		return
	}
	o.logger.Info("drained", "epoch", o.fence.Epoch, "next", o.fence.Next)
	o.Observer.Observe(Drained{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.fence.Next})
}

func newBackoff(low, high time.Duration) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(low),
		backoff.WithMaxInterval(high),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0), // never gives up by itself
	)
}
