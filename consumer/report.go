package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// What a person and an observer are told, and how long to wait after it.

// ended reports why consuming under a claim came to an end. It does so for a
// tenure that is over as well: that a transaction was refused is news all the
// same.
func (o *ownership[TX]) ended(out outcome) time.Duration {
	if o.progress {
		o.halts.Reset()
		o.retries.Reset()
		o.progress = false
	}
	o.keep = out.end == halted
	o.above = max(o.above, out.above)
	if now, ok := fenceAt(o.fence, out.err); ok && (out.end == refused || out.end == inDoubt) && o.compare(now) {
		return o.retries.next()
	}
	switch out.end {
	case refused:
		o.logger.Warn("stale: the partition belongs to a later claim; rolled back",
			"epoch", o.fence.Epoch, "claim", o.fence.Claim, "next", o.fence.Next,
			"held_epoch", out.stale.Held.Epoch, "held_claim", out.stale.Held.Claim,
			"held_owner", out.stale.Held.Owner, "held_next", out.stale.Held.Next)
		o.run.Observer.Observe(Stale{Ours: o.fence, Held: out.stale.Held})
		return o.retries.next()
	case inDoubt:
		o.trouble(slog.LevelWarn, "in doubt, claiming again", out.err, "epoch", o.fence.Epoch, "next", o.fence.Next)
		o.run.Observer.Observe(InDoubt{Partition: o.partition, Epoch: o.fence.Epoch, Err: out.err})
		in := o.retries.next()
		o.stands(o.fence.Next, out.err, 0, in)
		return in
	case surpassed:
		o.logger.Warn("another system has seen a higher epoch than the sink has issued, claiming again above it; was the sink restored, or did it lose transactions in a failover?",
			"epoch", o.fence.Epoch, "seen", out.above)
		return o.retries.next()
	case halted:
		return o.halted(out.err)
	case haltedInDoubt:
		o.run.Observer.Observe(InDoubt{Partition: o.partition, Epoch: o.fence.Epoch, Err: out.err})
		return o.halted(out.err)
	case escaped:
		o.run.escape(o.partition, out.err)
		o.escaped(out.err)
		return forever
	default: // left: the tenure is over
		return 0
	}
}

// compare reports that the sink went back, if its fence says so, and has the
// other partitions looked at. The messages at hand are then applied again.
func (o *ownership[TX]) compare(now epoch.Fence) (back bool) {
	var err *epoch.WentBackError
	if o.fence.Epoch == 0 || !errors.As(o.fence.Still(now), &err) {
		return false
	}
	o.logger.Error("the sink went back; claiming again and going on from where it is", "err", err,
		"was_epoch", err.Was.Epoch, "was_next", err.Was.Next, "epoch", now.Epoch, "next", now.Next, "owner", now.Owner)
	o.run.Observer.Observe(WentBack{Was: err.Was, Now: now})
	o.run.lookout.lookAtAll()
	o.probe.passed(o.probe.suspects)
	o.fence = now
	return true
}

// unclaimed reports why there is no claim.
func (o *ownership[TX]) unclaimed(ctx context.Context, err error) time.Duration {
	var no *unconfirmedError
	switch in := o.retries.next(); {
	case !o.running(ctx):
		return 0
	case errors.Is(err, epoch.ErrStale): // somebody else's swap came first
		o.logger.Debug("another claim came first", "err", err, "retry_in", in)
		return in
	case needsPerson(err):
		return o.halted(err)
	case errors.As(err, &no) && o.unconfirmed < 2: // an ordinary rebalance
		o.unconfirmed++
		o.logger.Info("lease not confirmed, asking again", "err", err, "retry_in", in)
		return in
	default:
		o.trouble(slog.LevelWarn, notClaimed, err, "retry_in", in)
		o.run.Observer.Observe(Halted{Partition: o.partition, Next: o.next(), Err: err, RetryIn: in})
		return in
	}
}

// needsPerson tells the refusals of a claim that no waiting resolves from those
// that pass.
func needsPerson(err error) bool {
	return errors.Is(err, epoch.ErrLogChanged) || errors.Is(err, epoch.ErrForeignLease) ||
		errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrUnhealthy)
}

func (o *ownership[TX]) trouble(level slog.Level, what string, err error, args ...any) {
	o.run.troubles.add(o.logger, level, o.partition, what, err, args...)
}

func (o *ownership[TX]) halted(err error) time.Duration {
	in := o.halts.next()
	o.trouble(slog.LevelError, "halted", err, "next", o.next(), "retry_in", in)
	o.run.Observer.Observe(Halted{Partition: o.partition, Next: o.next(), Err: err, RetryIn: in})
	return in
}

// stands reports a partition that has not moved for long, after an attempt that
// took so long has failed and before another one that follows after in.
func (o *ownership[TX]) stands(next epoch.Offset, err error, took, in time.Duration) {
	now := time.Now()
	if !o.probe.still.failed(now.Add(-took), now, in, o.tenure.Term()) {
		return
	}
	o.logger.Error("the partition does not move, trying again", "next", next, "for", now.Sub(o.probe.still.since), "err", err)
	o.run.Observer.Observe(Halted{Partition: o.partition, Next: next, Err: err, RetryIn: in})
}

func (o *ownership[TX]) escaped(err error) {
	o.logger.Error("halted until restarted", "next", o.next(), "err", err)
	o.run.Observer.Observe(Halted{Partition: o.partition, Next: o.next(), Err: err})
}

func (o *ownership[TX]) lost(cause error) {
	o.logger.Info("lost", "epoch", o.fence.Epoch, "next", o.next(), "cause", cause)
	o.run.Observer.Observe(Lost{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.next(), Cause: cause})
}

// next is the position, or -1 before the first claim.
func (o *ownership[TX]) next() epoch.Offset {
	if o.fence.Epoch == 0 {
		return -1
	}
	return o.fence.Next
}
