package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file reports to logs, observers and the audit log. It decides nothing.

// told is what operators were told of a partition. While the partition rests, watch.go has it.
type told struct {
	halted   bool   // observers got a Halted, and it has not moved since
	recorded Reason // of the halt in the audit log that counts since the last claim; ReasonNone without one
	silent   bool   // the lag is requested from the source
	still    aside.Standstill
	tick     aside.Ticks // of a job of package schedule
}

// moved ends a standstill.
func (t *told) moved() { t.still.Moved() }

// keepTheTable is logged when a position is adopted: others may have applied more than that.
const keepTheTable = "what others have applied beyond that is applied again, unless a dedupe table catches it: keep the table until epochfence moveover says that it may go"

// reportClaimed reports a claim. If the partition had been in trouble, the line goes to debug,
// because a partition that fails right after each claim would otherwise log a success each time.
func (p *partition) reportClaimed(got, seen epoch.Fence, took time.Duration) {
	about := []any{"epoch", got.Epoch, "claim", got.Claim, "next", got.Next}
	level := slog.LevelInfo
	if seen.Epoch == 0 {
		about = append(about, "begins", p.began(got))
		if got.Applied {
			level = slog.LevelWarn
			about = append(about, "keep", keepTheTable)
		}
	} else {
		about = append(about, "replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	}
	if p.run.troubles.Claimed(p.id); level == slog.LevelInfo && p.run.troubles.Of(p.id) != "" {
		level = slog.LevelDebug
	}
	p.logger.Log(context.Background(), level, "claimed", about...)
	p.told.halted = p.told.halted && p.told.still.Said // a new claim alone is no progress
	p.told.recorded = ReasonNone                       // it hides the halt in the audit log
	p.run.Observe(Claimed{Fence: got, Seen: seen, Halted: p.told.halted, Took: took, Attempts: p.attempts + 1, Waited: time.Since(p.unclaimedAt)})
	p.attempts = 0
	if p.told.silent = true; !p.told.halted {
		p.run.lags.Claimed(p.tenure, got)
	}
}

// began says where a partition begins, at its first claim.
func (p *partition) began(got epoch.Fence) string {
	start, ok := p.tenure.(StartDescriber)
	switch {
	case ok:
		return start.DescribeStart(got)
	case got.Applied:
		return "where the group had committed"
	case p.run.Start == StartCommitted:
		return "at the earliest message, as the group had committed nothing"
	}
	return fmt.Sprintf("as Options.Start says (%v)", p.run.Start)
}

// reportEnded reports why a claim has ended and when the next one follows.
func (p *partition) reportEnded(out outcome, in time.Duration) {
	switch out.action {
	case replaced:
		p.reportStale(out.err, out.looked)
	case claimAgain:
		level, what := slog.LevelWarn, "nothing was committed"
		if inDoubt(out.err) {
			what = "in doubt"
		}
		if what += ", claiming again"; !p.running(p.lease) { // the next owner's claim finds out
			level, what = slog.LevelInfo, what+" if the partition comes back"
		}
		p.trouble(level, what, out.err, "epoch", p.fence.Epoch, "next", p.fence.Next)
		p.reportInDoubt(out.err)
		p.reportStandstill(out.err, 0, in)
	case claimAbove:
		p.logger.Warn("another system has seen a higher epoch than this claim's, claiming again above it; if no other process has the partition, the sink was restored, or has lost transactions in a failover",
			"epoch", p.fence.Epoch, "seen", out.above)
		p.reportStandstill(out.err, 0, in)
	case halt:
		p.reportHalted(out.err, in)
	case haltInDoubt:
		p.reportInDoubt(out.err)
		p.reportHalted(out.err, in)
	case haltForGood:
		p.reportHaltedForGood(out.err)
	}
}

func (p *partition) reportInDoubt(err error) {
	p.run.Observe(InDoubt{Partition: p.id, Epoch: p.fence.Epoch, Err: err})
}

func (p *partition) reportWentBack(err *epoch.WentBackError) {
	now := err.Now
	p.logger.Error("the sink went back; claiming again and continuing from where it is", "err", err,
		"was_epoch", err.Was.Epoch, "was_next", err.Was.Next, "epoch", now.Epoch, "next", now.Next, "owner", now.Owner)
	p.run.Observe(WentBack{Was: err.Was, Now: now})
}

// reportElsewhere reports that the group's position was published under a claim that the sink does not have.
// seen is the fence that the first claim of this tenure has replaced. The position in the sink counts all the
// same (R8): which of two sinks is right, only an operator can say.
func (p *partition) reportElsewhere(seen epoch.Fence) {
	t, ok := p.tenure.(interface {
		PublishedElsewhere() (epoch.Fence, bool)
	})
	if !ok {
		return
	}
	at, is := t.PublishedElsewhere()
	if !is {
		return
	}
	p.logger.Error("the group's position was published under a claim that this sink has never had, or has lost: another process of the group writes to another database, or this one was restored; continuing from the position in this sink",
		"published_epoch", at.Epoch, "published_claim", at.Claim, "published_next", at.Next, "epoch", seen.Epoch, "claim", seen.Claim, "next", seen.Next,
		"remedy", "have all processes of the group use one database; epochfence check")
	at.Origin = seen.Origin
	p.run.Observe(WentBack{Was: at, Now: seen})
}

// reportStale reports a later claim. If an idle partition's look has found it, no transaction was refused.
func (p *partition) reportStale(err error, looked bool) {
	var stale *epoch.StaleError
	errors.As(err, &stale)
	level, what := slog.LevelWarn, "stale: the partition belongs to a later claim; rolled back"
	if looked {
		level, what = slog.LevelInfo, "stale: the partition belongs to a later claim; it had nothing in hand"
	}
	p.logger.Log(context.Background(), level, what,
		"epoch", p.fence.Epoch, "claim", p.fence.Claim, "next", p.fence.Next,
		"held_epoch", stale.Held.Epoch, "held_claim", stale.Held.Claim,
		"held_owner", stale.Held.Owner, "held_next", stale.Held.Next)
	if !looked {
		p.decide(operate.DecidedStale, err, "the fence is held by claim %s, epoch %d, owner %q", stale.Held.Claim, stale.Held.Epoch, stale.Held.Owner)
	}
	p.run.Observe(Stale{Ours: p.fence, Held: stale.Held})
}

func (p *partition) reportUnclaimed(n refusedClaim, err error, took, in time.Duration) {
	p.run.Observe(NotClaimed{Partition: p.id, Reason: reasonOf(err), Err: err, Took: took})
	switch n.pause {
	case haltPause:
		p.reportHalted(err, in)
		return
	case operatorPause:
		p.trouble(n.level, n.what, err, "next", p.next(), "reason", reasonOf(err), "retry_in", in)
	default:
		if !n.halted {
			p.logger.Log(context.Background(), n.level, n.what, "err", err, "retry_in", in)
			return
		}
		p.trouble(n.level, n.what, err, "reason", reasonOf(err), "remedy", p.remedy(), "retry_in", in)
	}
	p.observeHalt(err, in)
}

func (p *partition) reportHalted(err error, in time.Duration) {
	p.trouble(slog.LevelError, "halted", err, "epoch", p.fence.Epoch, "next", p.next(), "reason", reasonOf(err), "remedy", p.remedy(), "retry_in", in)
	p.observeHalt(err, in)
}

func (p *partition) reportAdvanced(did *part, took time.Duration) {
	if p.fence.Log == operate.JobLog {
		if due, d := p.told.tick.Moved(did.advance, did.messages, did.failed, took); due {
			d.Partition, d.Epoch, d.Claim, d.Owner = p.id, did.epoch, p.fence.Claim, p.fence.Owner
			p.run.recorder.Add(d)
		}
	}
	p.told.halted, p.told.recorded = false, ReasonNone
	if p.told.silent {
		p.told.silent = false
		p.run.lags.Moves(p.id)
	}
	failed := 0
	if did.failed != nil {
		failed = 1
	} else {
		p.run.troubles.Well(p.id)
	}
	p.run.Observe(Advanced{
		Partition: p.id, Epoch: did.epoch, From: did.advance.From, To: did.advance.To,
		Messages: len(did.messages), Failed: failed, Bytes: size(did.messages), Took: took,
		Oldest: timeOf(did.messages, 0), Newest: timeOf(did.messages, len(did.messages)-1), Lag: p.batch.lag(),
		Missed: p.batch.Missed, Late: p.batch.Late,
	})
}

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

// reportFailed reports a transaction that is tried again, and a message that is passed to
// OnFailure.
func (p *partition) reportFailed(v verdict, in, took time.Duration) {
	var failure *HandlerError
	if v.finding == lastAttempt && errors.As(v.err, &failure) {
		p.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", v.err, "offset", failure.Offset, "attempt", failure.Attempts)
	}
	if v.action != retry || in == 0 {
		return
	}
	offset, attempt := p.fence.Next, p.bisect.attempts
	if len(p.batch.Messages) > 0 {
		offset = p.batch.Messages[0].Offset
	}
	if p.fence.Log == operate.JobLog {
		p.told.tick.Failed(offset, v.err, took)
	}
	if v.finding == transient {
		p.reportStandstill(v.err, took, in)
	}
	if attempt > 0 {
		p.trouble(slog.LevelWarn, "message failed, trying again", v.err, "offset", offset, "attempt", attempt, "retry_in", in)
	} else {
		p.trouble(slog.LevelWarn, "transient failure, trying again", v.err, "offset", offset, "retry_in", in)
	}
	p.run.Observe(Retried{Partition: p.id, Offset: offset, Attempt: attempt, Reason: v.reason(), Err: v.err, RetryIn: in})
}

// reportStandstill reports a partition that has not moved for long. took is the duration of the
// failed attempt, in the wait before the next one.
func (p *partition) reportStandstill(err error, took, in time.Duration) {
	now, next := time.Now(), p.fence.Next
	if !p.told.still.Failed(now.Add(-took), now, in, p.tenure.Term()) {
		p.recordHalt(err)
		return
	}
	p.logger.Error("the partition does not move, trying again", "epoch", p.fence.Epoch, "next", next, "for", now.Sub(p.told.still.Since), "reason", reasonOf(err), "remedy", p.remedy(), "err", err)
	p.observeHalt(err, in)
}

func (p *partition) reportHaltedForGood(err error) {
	p.logger.Error("halted; this process does not try it again", "epoch", p.fence.Epoch, "next", p.next(), "reason", reasonOf(err), "remedy", p.remedy(), "err", err)
	p.observeHalt(err, 0)
}

func (p *partition) remedy() string { return "epochfence explain " + p.id.String() }

// observeHalt reports a partition that is tried again after in, or never if in is 0.
func (p *partition) observeHalt(err error, in time.Duration) {
	p.told.halted, p.told.silent = true, true
	p.recordHalt(err)
	at := p.fence
	if at.Epoch == 0 {
		at = p.seen
	}
	p.run.lags.Halted(p.tenure, at)
	p.run.Observe(Halted{Partition: p.id, Epoch: p.fence.Epoch, Next: p.next(), Reason: reasonOf(err), Err: err, RetryIn: in})
}

// recordHalt writes a halt with a new reason to the audit log, and again after each claim. The reason is
// in front of the error: tools find the remedy by it.
func (p *partition) recordHalt(err error) {
	if reason := reasonOf(err); p.told.halted && reason != p.told.recorded {
		p.told.recorded = reason
		p.decide(operate.DecidedHalt, err, "%v: %v", reason, err)
	}
}

// reportResumed reports the end of a halt when a look finds nothing wrong and there is nothing to apply.
// With messages, Advanced says so.
func (p *partition) reportResumed() {
	if !p.told.halted {
		return
	}
	p.told.halted, p.told.recorded = false, ReasonNone
	p.run.lags.Claimed(p.tenure, p.fence)
	p.told.still.Moved()
	p.run.troubles.Well(p.id)
	p.decide(operate.DecidedRecovery, nil, "it has nothing to apply")
	p.run.Observe(Resumed{Partition: p.id, Epoch: p.fence.Epoch, Next: p.fence.Next})
}

func (p *partition) reportLost(cause error) {
	p.logger.Info("lost", "epoch", p.fence.Epoch, "next", p.next(), "cause", cause)
	p.decide(operate.DecidedLoss, cause, "%v", cause)
	p.run.Observe(Lost{
		Partition: p.id, Epoch: p.fence.Epoch, Next: p.next(), Reason: reasonOf(cause), Cause: cause, InFlight: p.caught.Load(),
	})
}

func (p *partition) reportGivenUp() {
	err := &hungError{p.overdue()}
	p.logger.Error("given up to other processes, as a call for it hangs", "epoch", p.fence.Epoch, "next", p.next())
	p.run.Observe(Lost{Partition: p.id, Epoch: p.fence.Epoch, Next: p.next(), Reason: ReasonHung, Cause: err, InFlight: true})
}

// next returns the position, or -1 before the first claim.
func (p *partition) next() epoch.Offset {
	if p.fence.Epoch == 0 {
		return -1
	}
	return p.fence.Next
}

func (p *partition) reportDrained() {
	p.logger.Info("drained", "epoch", p.fence.Epoch, "next", p.next())
	p.run.Observe(Drained{Partition: p.id, Epoch: p.fence.Epoch, Next: p.next()})
}

// decide records a decision about the partition as this process last knew it. err is the cause.
func (p *partition) decide(kind operate.DecisionKind, err error, format string, args ...any) {
	f := p.fence
	p.run.recorder.Add(operate.Decision{
		Kind: kind, Partition: p.id, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: p.next(), To: p.next(), Reason: fmt.Sprintf(format, args...), TraceID: operate.TraceOf(err),
	})
}
