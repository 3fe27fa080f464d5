package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// What a person and an observer are told, and how long to wait after it.

// keepTheTable is said where a position is taken over from the group: others may have
// applied more than they had committed.
const keepTheTable = "what others have applied beyond that is applied again, unless a dedupe table catches it: keep the table until epochfence moveover says that it may go"

// claimed reports a claim.
func (o *ownership[TX]) claimed(got, seen epoch.Fence, took time.Duration) {
	about := []any{"epoch", got.Epoch, "claim", got.Claim, "next", got.Next}
	level := slog.LevelInfo
	if seen.Epoch == 0 {
		about = append(about, "begins", o.run.began(got))
		if got.Applied {
			level = slog.LevelWarn
			about = append(about, "keep", keepTheTable)
		}
	} else {
		about = append(about, "replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	}
	if o.run.troubles.claimed(o.partition); level == slog.LevelInfo && o.run.troubles.Of(o.partition) != "" {
		level = slog.LevelDebug // one of many, perhaps
	}
	o.logger.Log(context.Background(), level, "claimed", about...)
	o.stands = o.stands && o.still.said // one that is claimed again and again has not moved for that
	o.run.Observe(Claimed{Fence: got, Seen: seen, Halted: o.stands, Took: took, Attempts: o.attempts + 1, Waited: time.Since(o.unclaimedAt)})
	o.attempts = 0
	if o.silent = true; !o.stands {
		o.run.lags.claimed(o.tenure, got)
	}
}

// ended reports why consuming under a claim came to an end. It does so for a
// tenure that is over as well: that a transaction was refused is news all the
// same.
func (o *ownership[TX]) ended(out outcome) time.Duration {
	if o.progress {
		o.halts.Reset()
		o.retries.Reset()
		o.progress = false
	}
	o.claimValid = out.action == halt
	o.above = max(o.above, out.above)
	if now, ok := fenceAt(o.fence, out.err); ok && (out.action == giveUp || out.action == claimAgain) && o.compare(now) {
		return o.retries.Next()
	}
	switch out.action {
	case giveUp:
		o.stale(out.err)
		return o.retries.Next()
	case claimAgain:
		o.trouble(slog.LevelWarn, "in doubt, claiming again", out.err, "epoch", o.fence.Epoch, "next", o.fence.Next)
		o.inDoubt(out.err)
		in := o.retries.Next()
		o.standsStill(out.err, 0, in)
		return in
	case claimAbove:
		o.logger.Warn("another system has seen a higher epoch than the sink has issued, claiming again above it; was the sink restored, or did it lose transactions in a failover?",
			"epoch", o.fence.Epoch, "seen", out.above)
		return o.retries.Next()
	case halt:
		return o.halted(out.err)
	case haltInDoubt:
		o.inDoubt(out.err)
		return o.halted(out.err)
	case abandon:
		o.hang = out.hang
		return 0
	case haltForGood:
		o.run.endedTx(o.partition, out.err)
		o.haltedForGood(out.err)
		return forever
	default: // leave: the tenure is over
		return 0
	}
}

func (o *ownership[TX]) inDoubt(err error) {
	o.doubt = &doubt{o.fence, err}
	o.run.Observe(InDoubt{Partition: o.partition, Epoch: o.fence.Epoch, Err: err})
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
	o.run.Observe(WentBack{Was: err.Was, Now: now})
	o.run.lookAtAll()
	o.forget()
	o.fence = now
	return true
}

// fenceAt is the fence that a refusal shows, of a partition whose fence we left
// as ours.
func fenceAt(ours epoch.Fence, err error) (now epoch.Fence, ok bool) {
	var (
		back  *epoch.WentBackError
		stale *epoch.StaleError
		moved *epoch.MovedError
	)
	switch {
	case errors.As(err, &back):
		return back.Now, true
	case errors.As(err, &stale):
		return stale.Held, stale.Held.Partition == ours.Partition
	case errors.As(err, &moved):
		ours.Next = moved.Next
		return ours, true
	default:
		return epoch.Fence{}, false
	}
}

func (o *ownership[TX]) stale(err error) {
	var stale *epoch.StaleError
	errors.As(err, &stale)
	o.logger.Warn("stale: the partition belongs to a later claim; rolled back",
		"epoch", o.fence.Epoch, "claim", o.fence.Claim, "next", o.fence.Next,
		"held_epoch", stale.Held.Epoch, "held_claim", stale.Held.Claim,
		"held_owner", stale.Held.Owner, "held_next", stale.Held.Next)
	o.decide(epoch.DecidedStale, err, "the fence is held by claim %s, epoch %d, owner %q", stale.Held.Claim, stale.Held.Epoch, stale.Held.Owner)
	o.run.Observe(Stale{Ours: o.fence, Held: stale.Held})
}

// unclaimed reports why there is no claim, after an attempt that took so long.
func (o *ownership[TX]) unclaimed(ctx context.Context, err error, took time.Duration) time.Duration {
	in := o.retries.Next()
	if !o.running(ctx) {
		return 0
	}
	o.attempts++
	o.run.Observe(NotClaimed{Partition: o.partition, Reason: reasonOf(err), Err: err, Took: took})
	var no *unconfirmedError
	switch {
	case errors.Is(err, epoch.ErrStale): // somebody else's swap came first
		o.logger.Debug("another claim came first", "err", err, "retry_in", in)
		return in
	case errors.Is(err, epoch.ErrPaused):
		o.retries.Reset()
		return o.paused(err)
	case needsPerson(err):
		return o.halted(err)
	case errors.As(err, &no) && o.unconfirmed < 2: // an ordinary rebalance
		o.unconfirmed++
		o.logger.Info("lease not confirmed, asking again", "err", err, "retry_in", in)
		return in
	default:
		o.trouble(slog.LevelWarn, notClaimed, err, "retry_in", in)
		o.observeHalt(err, in)
		return in
	}
}

// needsPerson tells the refusals of a claim that no waiting resolves from those
// that pass.
func needsPerson(err error) bool {
	return errors.Is(err, epoch.ErrLogChanged) || errors.Is(err, epoch.ErrForeignLease) ||
		errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrElsewhere) || errors.Is(err, epoch.ErrUnhealthy)
}

// pausedMax is how soon a paused partition is tried again, should nobody tell before
// that it was resumed.
const pausedMax = 5 * time.Second

// paused reports a partition that a person has paused.
func (o *ownership[TX]) paused(err error) time.Duration {
	in := min(o.halts.Next(), pausedMax)
	o.trouble(slog.LevelWarn, "paused", err, "next", o.next(), "retry_in", in)
	o.observeHalt(err, in)
	return in
}

func (o *ownership[TX]) trouble(level slog.Level, what string, err error, args ...any) {
	o.run.troubles.add(o.logger, level, o.partition, what, err, args...)
}

func (o *ownership[TX]) halted(err error) time.Duration {
	in := o.halts.Next()
	o.trouble(slog.LevelError, "halted", err, "next", o.next(), "reason", reasonOf(err), "remedy", o.remedy(), "retry_in", in)
	o.observeHalt(err, in)
	return in
}

// advanced reports a transaction that has committed, and mirrors the position.
func (o *ownership[TX]) advanced(now epoch.Fence, did part[TX], took time.Duration) {
	for _, applied := range o.applied {
		select {
		case applied <- struct{}{}:
		default:
		}
	}
	o.tenure.Mirror(now)
	o.stands = false
	if o.silent {
		o.silent = false
		o.run.lags.moves(o.partition)
	}
	failed := 0
	if did.failed != nil {
		failed = 1
	} else {
		o.run.troubles.Well(o.partition)
	}
	o.run.Observe(Advanced{
		Partition: o.partition, Epoch: did.epoch, From: did.advance.From, To: did.advance.To,
		Messages: len(did.messages), Failed: failed, Bytes: size(did.messages), Took: took,
		Oldest: timeOf(did.messages, 0), Newest: timeOf(did.messages, len(did.messages)-1), Lag: o.batch.lag(),
	})
}

// timeOf is the time of a message, or zero if there are none.
func timeOf(ms []Message, i int) time.Time {
	if len(ms) == 0 {
		return time.Time{}
	}
	return ms[i].Time
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

// report reports a transaction that failed and is tried again after in.
func (p *pending[TX]) report(v verdict, in, took time.Duration) {
	o := p.owner
	var failure *HandlerError
	if v.lesson == lastAttempt && errors.As(v.err, &failure) {
		o.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", v.err, "offset", failure.Offset, "attempt", failure.Attempts)
	}
	if v.action != retry || in == 0 {
		return
	}
	offset, attempt := p.fence.Next, p.bisect.attempts
	if len(p.batch.Messages) > 0 {
		offset = p.batch.Messages[0].Offset
	}
	if v.lesson == transient {
		o.standsStill(v.err, took, in)
	}
	if attempt > 0 {
		o.trouble(slog.LevelWarn, "message failed, trying again", v.err, "offset", offset, "attempt", attempt, "retry_in", in)
	} else {
		o.trouble(slog.LevelWarn, "transient failure, trying again", v.err, "offset", offset, "retry_in", in)
	}
	o.run.Observe(Retried{Partition: o.partition, Offset: offset, Attempt: attempt, Reason: v.reason(), Err: v.err, RetryIn: in})
}

// standsStill reports a partition that has not moved for long, after an attempt that
// took so long has failed and before another one that follows after in.
func (o *ownership[TX]) standsStill(err error, took, in time.Duration) {
	now, next := time.Now(), o.fence.Next
	if !o.still.failed(now.Add(-took), now, in, o.tenure.Term()) {
		return
	}
	o.logger.Error("the partition does not move, trying again", "next", next, "for", now.Sub(o.still.since), "err", err)
	o.observeHalt(err, in)
}

func (o *ownership[TX]) haltedForGood(err error) {
	o.logger.Error("halted until restarted", "next", o.next(), "reason", reasonOf(err), "remedy", o.remedy(), "err", err)
	o.observeHalt(err, 0)
}

// remedy is the command that says what to do about a halt.
func (o *ownership[TX]) remedy() string { return "epochfence explain " + o.partition.String() }

// observeHalt is of a partition that is tried again after in, or not at all. The decision
// log has the reason in front of the error, by which tools find the remedy.
func (o *ownership[TX]) observeHalt(err error, in time.Duration) {
	reason := reasonOf(err)
	if !o.stands {
		o.decide(epoch.DecidedHalt, err, "%v: %v", reason, err)
	}
	o.stands, o.silent = true, true
	at := o.fence
	if at.Epoch == 0 {
		at = o.seen
	}
	o.run.lags.halted(o.tenure, at)
	o.run.Observe(Halted{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.next(), Reason: reason, Err: err, RetryIn: in})
}

// resumed reports a partition that has nothing to apply and is as it should be.
func (o *ownership[TX]) resumed() {
	if !o.stands {
		return
	}
	o.stands = false
	o.run.lags.claimed(o.tenure, o.fence)
	o.still.moved()
	o.run.troubles.Well(o.partition)
	o.decide(epoch.DecidedRecovery, nil, "it has nothing to apply")
	o.run.Observe(Resumed{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.fence.Next})
}

func (o *ownership[TX]) lost(cause error) {
	o.logger.Info("lost", "epoch", o.fence.Epoch, "next", o.next(), "cause", cause)
	o.decide(epoch.DecidedLoss, cause, "%v", cause)
	o.run.Observe(Lost{
		Partition: o.partition, Epoch: o.fence.Epoch, Next: o.next(), Reason: reasonOf(cause), Cause: cause, InFlight: o.caught.Load(),
	})
}

// gaveUp reports that the partition is given up because a call for it hangs.
func (o *ownership[TX]) gaveUp() {
	err := &hungError{o.run.hung.call(o.hang)}
	o.logger.Error("given up to other processes, as a call for it hangs", "epoch", o.fence.Epoch, "next", o.next())
	o.run.Observe(Lost{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.next(), Reason: ReasonHung, Cause: err, InFlight: true})
}

// next is the position, or -1 before the first claim.
func (o *ownership[TX]) next() epoch.Offset {
	if o.fence.Epoch == 0 {
		return -1
	}
	return o.fence.Next
}

func (o *ownership[TX]) drained() {
	o.logger.Info("drained", "epoch", o.fence.Epoch, "next", o.next())
	o.run.Observe(Drained{Partition: o.partition, Epoch: o.fence.Epoch, Next: o.next()})
}
