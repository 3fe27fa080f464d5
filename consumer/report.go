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

// This file reports to operators what has become of a partition: in the log, as events and in the audit log. It
// decides nothing, and gets what has happened as values. internal/aside decides how often the same is written.

// report writes reports of one tenure, and knows what the last ones were. Where a method takes a fence, that is
// the one that this process has claimed and advanced. While the partition rests, watch.go has the report.
type report struct {
	run    *runner
	id     epoch.Partition
	tenure Tenure
	logger *slog.Logger

	seen     epoch.Fence // as last read, which may be another process's
	halted   bool        // observers got a Halted, and it has not moved since
	recorded Reason      // of the halt in the audit log that counts since the last claim; ReasonNone without one
	silent   bool        // the lag is requested from the source
	still    aside.Standstill
	tick     aside.Ticks // of a job of package schedule
}

// moved ends a standstill.
func (r *report) moved() { r.still.Moved() }

// keepTheTable is logged when a position is adopted: others may have applied more than that.
const keepTheTable = "what others have applied beyond that is applied again, unless a dedupe table catches it: keep the table until epochfence moveover says that it may go"

// trouble logs an incident of the partition, without repeating a line that others have caused.
func (r *report) trouble(level slog.Level, what string, err error, args ...any) {
	r.run.troubles.Add(r.logger, level, r.id, what, err, args...)
}

// claimed reports a claim that took so many attempts. If the partition had been in trouble, the line goes to
// debug: a partition that fails right after each claim would otherwise log a success each time.
func (r *report) claimed(got, seen epoch.Fence, attempts int, waited, took time.Duration) {
	about := []any{"epoch", got.Epoch, "claim", got.Claim, "next", got.Next}
	level := slog.LevelInfo
	if seen.Epoch == 0 {
		about = append(about, "begins", r.began(got))
		if got.Applied {
			level = slog.LevelWarn
			about = append(about, "keep", keepTheTable)
		}
	} else {
		about = append(about, "replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	}
	if r.run.troubles.Claimed(r.id); level == slog.LevelInfo && r.run.troubles.Of(r.id) != "" {
		level = slog.LevelDebug
	}
	r.logger.Log(context.Background(), level, "claimed", about...)
	r.halted = r.halted && r.still.Reported // a new claim alone is no progress
	r.recorded = ReasonNone                 // it hides the halt in the audit log
	r.run.Observe(Claimed{Fence: got, Seen: seen, Halted: r.halted, Took: took, Attempts: attempts, Waited: waited})
	if r.silent = true; !r.halted {
		r.run.lags.Claimed(r.tenure, got)
	}
}

// began says where a partition begins, at its first claim.
func (r *report) began(got epoch.Fence) string {
	start, ok := r.tenure.(StartDescriber)
	switch {
	case ok:
		return start.DescribeStart(got)
	case got.Applied:
		return "where the group had committed"
	case r.run.Start == StartCommitted:
		return "at the earliest message, as the group had committed nothing"
	}
	return fmt.Sprintf("as Options.Start says (%v)", r.run.Start)
}

// ended reports why a claim has ended and when the next one follows: none of this process if its tenure is over.
func (r *report) ended(at epoch.Fence, out outcome, over bool, in time.Duration) {
	switch out.action {
	case replaced:
		r.stale(at, out.err, out.looked)
	case claimAgain:
		level, what := slog.LevelWarn, "nothing was committed"
		if inDoubt(out.err) {
			what = "in doubt"
		}
		if what += ", claiming again"; over { // the next owner's claim finds out
			level, what = slog.LevelInfo, what+" if the partition comes back"
		}
		r.trouble(level, what, out.err, "epoch", at.Epoch, "next", at.Next)
		r.inDoubt(at, out.err)
		r.standstill(at, out.err, 0, in)
	case claimAbove:
		r.logger.Warn("another system has seen a higher epoch than this claim's, claiming again above it; if no other process has the partition, the sink was restored, or has lost transactions in a failover",
			"epoch", at.Epoch, "seen", out.above)
		r.standstill(at, out.err, 0, in)
	case halt:
		r.stopped(at, out.err, in)
	case haltInDoubt:
		r.inDoubt(at, out.err)
		r.stopped(at, out.err, in)
	case haltForGood:
		r.stoppedForGood(at, out.err)
	}
}

func (r *report) inDoubt(at epoch.Fence, err error) {
	r.run.Observe(InDoubt{Partition: r.id, Epoch: at.Epoch, Err: err})
}

func (r *report) wentBack(err *epoch.WentBackError) {
	now := err.Now
	r.logger.Error("the sink went back; claiming again and continuing from where it is", "err", err,
		"was_epoch", err.Was.Epoch, "was_next", err.Was.Next, "epoch", now.Epoch, "next", now.Next, "owner", now.Owner)
	r.run.Observe(WentBack{Was: err.Was, Now: now})
}

// elsewhere reports that the group's position was published under a claim that the sink does not have.
// seen is the fence that the first claim of this tenure has replaced. The position in the sink counts all the
// same (R8): which of two sinks is right, only an operator can say.
func (r *report) elsewhere(seen epoch.Fence) {
	published, ok := r.tenure.(interface {
		PublishedElsewhere() (epoch.Fence, bool)
	})
	if !ok {
		return
	}
	at, is := published.PublishedElsewhere()
	if !is {
		return
	}
	r.logger.Error("the group's position was published under a claim that this sink has never had, or has lost: another process of the group writes to another database, or this one was restored; continuing from the position in this sink",
		"published_epoch", at.Epoch, "published_claim", at.Claim, "published_next", at.Next, "epoch", seen.Epoch, "claim", seen.Claim, "next", seen.Next,
		"remedy", "have all processes of the group use one database; epochfence check")
	at.Origin = seen.Origin
	r.run.Observe(WentBack{Was: at, Now: seen})
}

// stale reports a later claim. If an idle partition's look has found it, no transaction was refused.
func (r *report) stale(at epoch.Fence, err error, looked bool) {
	var stale *epoch.StaleError
	errors.As(err, &stale)
	level, what := slog.LevelWarn, "stale: the partition belongs to a later claim; rolled back"
	if looked {
		level, what = slog.LevelInfo, "stale: the partition belongs to a later claim; it had nothing in hand"
	}
	r.logger.Log(context.Background(), level, what,
		"epoch", at.Epoch, "claim", at.Claim, "next", at.Next,
		"held_epoch", stale.Held.Epoch, "held_claim", stale.Held.Claim,
		"held_owner", stale.Held.Owner, "held_next", stale.Held.Next)
	if !looked {
		r.decide(at, operate.DecidedStale, err, "the fence is held by claim %s, epoch %d, owner %q", stale.Held.Claim, stale.Held.Epoch, stale.Held.Owner)
	}
	r.run.Observe(Stale{Ours: at, Held: stale.Held})
}

func (r *report) unclaimed(at epoch.Fence, n refusedClaim, err error, took, in time.Duration) {
	r.run.Observe(NotClaimed{Partition: r.id, Reason: reasonOf(err), Err: err, Took: took})
	switch n.pause {
	case haltPause:
		r.stopped(at, err, in)
		return
	case operatorPause:
		r.trouble(n.level, n.what, err, "next", nextOf(at), "reason", reasonOf(err), "retry_in", in)
	default:
		if !n.halted {
			r.logger.Log(context.Background(), n.level, n.what, "err", err, "retry_in", in)
			return
		}
		r.trouble(n.level, n.what, err, "reason", reasonOf(err), "remedy", r.remedy(), "retry_in", in)
	}
	r.halt(at, err, in)
}

func (r *report) stopped(at epoch.Fence, err error, in time.Duration) {
	r.trouble(slog.LevelError, "halted", err, "epoch", at.Epoch, "next", nextOf(at), "reason", reasonOf(err), "remedy", r.remedy(), "retry_in", in)
	r.halt(at, err, in)
}

// advanced reports a commit. left is what is left of the batch, and at the fence after it.
func (r *report) advanced(at epoch.Fence, did *part, left Batch, took time.Duration) {
	if at.Log == operate.JobLog {
		if due, d := r.tick.Moved(did.advance, did.messages, did.failed, took); due {
			d.Partition, d.Epoch, d.Claim, d.Owner = r.id, did.epoch, at.Claim, at.Owner
			r.run.recorder.Add(d)
		}
	}
	r.halted, r.recorded = false, ReasonNone
	if r.silent {
		r.silent = false
		r.run.lags.Moves(r.id)
	}
	failed, later := 0, 0
	if _, ok := deferral(did.failed); ok && r.run.policy.defers {
		later = 1
	} else if did.failed != nil {
		failed = 1
	} else {
		r.run.troubles.Well(r.id)
	}
	r.run.Observe(Advanced{
		Partition: r.id, Epoch: did.epoch, From: did.advance.From, To: did.advance.To,
		Messages: len(did.messages), Failed: failed, Deferred: later, Bytes: size(did.messages), Took: took,
		Oldest: timeOf(did.messages, 0), Newest: timeOf(did.messages, len(did.messages)-1), Lag: left.lag(),
		Missed: left.Missed, Late: left.Late,
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

// failed reports a transaction that is tried again from an offset, and a message that is passed to OnFailure.
func (r *report) failed(at epoch.Fence, offset epoch.Offset, attempt int, v verdict, in, took time.Duration) {
	var failure *HandlerError
	if v.finding == lastAttempt && errors.As(v.err, &failure) {
		r.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", v.err, "offset", failure.Offset, "attempt", failure.Attempts)
	}
	if v.finding == deferred && errors.As(v.err, &failure) {
		r.trouble(slog.LevelInfo, "the handler wants the message again later, storing it", v.err, "offset", failure.Offset)
	}
	if v.action != retry || in == 0 {
		return
	}
	if at.Log == operate.JobLog {
		r.tick.Failed(offset, v.err, took)
	}
	if v.finding == transient {
		r.standstill(at, v.err, took, in)
	}
	if attempt > 0 {
		r.trouble(slog.LevelWarn, "message failed, trying again", v.err, "offset", offset, "attempt", attempt, "retry_in", in)
	} else {
		r.trouble(slog.LevelWarn, "transient failure, trying again", v.err, "offset", offset, "retry_in", in)
	}
	r.run.Observe(Retried{Partition: r.id, Offset: offset, Attempt: attempt, Reason: v.reason(), Err: v.err, RetryIn: in})
}

// standstill reports a partition that has not moved for long. took is the duration of the
// failed attempt, in the wait before the next one.
func (r *report) standstill(at epoch.Fence, err error, took, in time.Duration) {
	now := time.Now()
	if !r.still.Failed(now.Add(-took), now, in, r.tenure.Term()) {
		r.recordHalt(at, err)
		return
	}
	r.logger.Error("the partition does not move, trying again", "epoch", at.Epoch, "next", at.Next, "for", now.Sub(r.still.Since), "reason", reasonOf(err), "remedy", r.remedy(), "err", err)
	r.halt(at, err, in)
}

func (r *report) stoppedForGood(at epoch.Fence, err error) {
	r.logger.Error("halted; this process does not try it again", "epoch", at.Epoch, "next", nextOf(at), "reason", reasonOf(err), "remedy", r.remedy(), "err", err)
	r.halt(at, err, 0)
}

func (r *report) remedy() string { return "epochfence explain " + r.id.String() }

// halt sends the event for a partition that is tried again after in, or never if in is 0. Its lag is requested
// until it moves: it shows how urgent the halt is.
func (r *report) halt(at epoch.Fence, err error, in time.Duration) {
	r.halted, r.silent = true, true
	r.recordHalt(at, err)
	read := at
	if at.Epoch == 0 {
		read = r.seen
	}
	r.run.lags.Halted(r.tenure, read)
	r.run.Observe(Halted{Partition: r.id, Epoch: at.Epoch, Next: nextOf(at), Reason: reasonOf(err), Err: err, RetryIn: in})
}

// recordHalt writes a halt with a new reason to the audit log, and again after each claim. The reason is
// in front of the error: tools find the remedy by it.
func (r *report) recordHalt(at epoch.Fence, err error) {
	if reason := reasonOf(err); r.halted && reason != r.recorded {
		r.recorded = reason
		r.decide(at, operate.DecidedHalt, err, "%v: %v", reason, err)
	}
}

// resumed reports the end of a halt when a look finds nothing wrong and there is nothing to apply.
// With messages, Advanced says so.
func (r *report) resumed(at epoch.Fence) {
	if !r.halted {
		return
	}
	r.halted, r.recorded = false, ReasonNone
	r.run.lags.Claimed(r.tenure, at)
	r.still.Moved()
	r.run.troubles.Well(r.id)
	r.decide(at, operate.DecidedRecovery, nil, "it has nothing to apply")
	r.run.Observe(Resumed{Partition: r.id, Epoch: at.Epoch, Next: at.Next})
}

// lost reports the loss of the partition. inFlight reports whether a transaction was open.
func (r *report) lost(at epoch.Fence, cause error, inFlight bool) {
	r.logger.Info("lost", "epoch", at.Epoch, "next", nextOf(at), "cause", cause)
	r.decide(at, operate.DecidedLoss, cause, "%v", cause)
	r.run.Observe(Lost{
		Partition: r.id, Epoch: at.Epoch, Next: nextOf(at), Reason: reasonOf(cause), Cause: cause, InFlight: inFlight,
	})
}

func (r *report) givenUp(at epoch.Fence, hangs Overdue) {
	r.logger.Error("given up to other processes, as a call for it hangs", "epoch", at.Epoch, "next", nextOf(at))
	r.run.Observe(Lost{Partition: r.id, Epoch: at.Epoch, Next: nextOf(at), Reason: ReasonHung, Cause: &hungError{hangs}, InFlight: true})
}

// nextOf returns the position of a fence, or -1 before the first claim.
func nextOf(at epoch.Fence) epoch.Offset {
	if at.Epoch == 0 {
		return -1
	}
	return at.Next
}

func (r *report) drained(at epoch.Fence) {
	r.logger.Info("drained", "epoch", at.Epoch, "next", nextOf(at))
	r.run.Observe(Drained{Partition: r.id, Epoch: at.Epoch, Next: nextOf(at)})
}

// replayed reports a try of a replay. failed says that it was the last one, also if what it did ended the claim.
func (r *report) replayed(q *replay, what outcomeOfReplay, failed bool, a answer) {
	about := []any{"dead_letter", q.ID, "offset", q.Message.Offset, "epoch", a.part.epoch}
	log := r.run.log(r.id)
	switch what {
	case replayed:
		log.Info("a dead letter was replayed", about...)
	case replayFailed:
		log.Error("the replay of a dead letter failed, and the dead letter stays", append(about, "err", a.err)...)
	case replayDeferred:
		log.Info("the replay of a deferred message failed, and it is deferred once more", append(about, "err", a.err)...)
	case replayGone:
		log.Info("the replay of a dead letter was rolled back: it was withdrawn, discarded or done meanwhile", about...)
	case replayBroke:
		log.Warn("the replay of a dead letter ended the claim; if it was not committed, it stays requested", append(about, "err", a.err)...)
	default:
		log.Warn("the replay of a dead letter was rolled back, trying again", append(about, "err", a.err)...)
	}
	r.run.Observe(Replayed{
		Partition: r.id, Epoch: a.part.epoch, Offset: q.Message.Offset, DeadLetter: q.ID,
		Err: a.err, Final: what.final(), Dead: failed && q.IsDue, Took: a.took,
	})
}

// decide records a decision about the partition as this process last knew it. err is the cause.
func (r *report) decide(at epoch.Fence, kind operate.DecisionKind, err error, format string, args ...any) {
	r.run.recorder.Add(operate.Decision{
		Kind: kind, Partition: r.id, Epoch: at.Epoch, Claim: at.Claim, Owner: at.Owner,
		From: nextOf(at), To: nextOf(at), Reason: fmt.Sprintf(format, args...), TraceID: operate.TraceOf(err),
	})
}
