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

// This file tells operators what has become of a partition: in the log, as events and in the audit log. It
// decides nothing, and gets what has happened as values. internal/aside decides how often the same is written.

// told is what operators were told of a partition, and tells them more. Where a method takes a fence, that is
// the one that this process has claimed and advanced. While the partition rests, watch.go has it.
type told struct {
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
func (t *told) moved() { t.still.Moved() }

// keepTheTable is logged when a position is adopted: others may have applied more than that.
const keepTheTable = "what others have applied beyond that is applied again, unless a dedupe table catches it: keep the table until epochfence moveover says that it may go"

// trouble logs an incident of the partition, without repeating a line that others have caused.
func (t *told) trouble(level slog.Level, what string, err error, args ...any) {
	t.run.troubles.Add(t.logger, level, t.id, what, err, args...)
}

// claimed reports a claim that took so many attempts. If the partition had been in trouble, the line goes to
// debug: a partition that fails right after each claim would otherwise log a success each time.
func (t *told) claimed(got, seen epoch.Fence, attempts int, waited, took time.Duration) {
	about := []any{"epoch", got.Epoch, "claim", got.Claim, "next", got.Next}
	level := slog.LevelInfo
	if seen.Epoch == 0 {
		about = append(about, "begins", t.began(got))
		if got.Applied {
			level = slog.LevelWarn
			about = append(about, "keep", keepTheTable)
		}
	} else {
		about = append(about, "replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	}
	if t.run.troubles.Claimed(t.id); level == slog.LevelInfo && t.run.troubles.Of(t.id) != "" {
		level = slog.LevelDebug
	}
	t.logger.Log(context.Background(), level, "claimed", about...)
	t.halted = t.halted && t.still.Said // a new claim alone is no progress
	t.recorded = ReasonNone             // it hides the halt in the audit log
	t.run.Observe(Claimed{Fence: got, Seen: seen, Halted: t.halted, Took: took, Attempts: attempts, Waited: waited})
	if t.silent = true; !t.halted {
		t.run.lags.Claimed(t.tenure, got)
	}
}

// began says where a partition begins, at its first claim.
func (t *told) began(got epoch.Fence) string {
	start, ok := t.tenure.(StartDescriber)
	switch {
	case ok:
		return start.DescribeStart(got)
	case got.Applied:
		return "where the group had committed"
	case t.run.Start == StartCommitted:
		return "at the earliest message, as the group had committed nothing"
	}
	return fmt.Sprintf("as Options.Start says (%v)", t.run.Start)
}

// ended reports why a claim has ended and when the next one follows: none of this process if its tenure is over.
func (t *told) ended(at epoch.Fence, out outcome, over bool, in time.Duration) {
	switch out.action {
	case replaced:
		t.stale(at, out.err, out.looked)
	case claimAgain:
		level, what := slog.LevelWarn, "nothing was committed"
		if inDoubt(out.err) {
			what = "in doubt"
		}
		if what += ", claiming again"; over { // the next owner's claim finds out
			level, what = slog.LevelInfo, what+" if the partition comes back"
		}
		t.trouble(level, what, out.err, "epoch", at.Epoch, "next", at.Next)
		t.inDoubt(at, out.err)
		t.standstill(at, out.err, 0, in)
	case claimAbove:
		t.logger.Warn("another system has seen a higher epoch than this claim's, claiming again above it; if no other process has the partition, the sink was restored, or has lost transactions in a failover",
			"epoch", at.Epoch, "seen", out.above)
		t.standstill(at, out.err, 0, in)
	case halt:
		t.stopped(at, out.err, in)
	case haltInDoubt:
		t.inDoubt(at, out.err)
		t.stopped(at, out.err, in)
	case haltForGood:
		t.stoppedForGood(at, out.err)
	}
}

func (t *told) inDoubt(at epoch.Fence, err error) {
	t.run.Observe(InDoubt{Partition: t.id, Epoch: at.Epoch, Err: err})
}

func (t *told) wentBack(err *epoch.WentBackError) {
	now := err.Now
	t.logger.Error("the sink went back; claiming again and continuing from where it is", "err", err,
		"was_epoch", err.Was.Epoch, "was_next", err.Was.Next, "epoch", now.Epoch, "next", now.Next, "owner", now.Owner)
	t.run.Observe(WentBack{Was: err.Was, Now: now})
}

// elsewhere reports that the group's position was published under a claim that the sink does not have.
// seen is the fence that the first claim of this tenure has replaced. The position in the sink counts all the
// same (R8): which of two sinks is right, only an operator can say.
func (t *told) elsewhere(seen epoch.Fence) {
	published, ok := t.tenure.(interface {
		PublishedElsewhere() (epoch.Fence, bool)
	})
	if !ok {
		return
	}
	at, is := published.PublishedElsewhere()
	if !is {
		return
	}
	t.logger.Error("the group's position was published under a claim that this sink has never had, or has lost: another process of the group writes to another database, or this one was restored; continuing from the position in this sink",
		"published_epoch", at.Epoch, "published_claim", at.Claim, "published_next", at.Next, "epoch", seen.Epoch, "claim", seen.Claim, "next", seen.Next,
		"remedy", "have all processes of the group use one database; epochfence check")
	at.Origin = seen.Origin
	t.run.Observe(WentBack{Was: at, Now: seen})
}

// stale reports a later claim. If an idle partition's look has found it, no transaction was refused.
func (t *told) stale(at epoch.Fence, err error, looked bool) {
	var stale *epoch.StaleError
	errors.As(err, &stale)
	level, what := slog.LevelWarn, "stale: the partition belongs to a later claim; rolled back"
	if looked {
		level, what = slog.LevelInfo, "stale: the partition belongs to a later claim; it had nothing in hand"
	}
	t.logger.Log(context.Background(), level, what,
		"epoch", at.Epoch, "claim", at.Claim, "next", at.Next,
		"held_epoch", stale.Held.Epoch, "held_claim", stale.Held.Claim,
		"held_owner", stale.Held.Owner, "held_next", stale.Held.Next)
	if !looked {
		t.decide(at, operate.DecidedStale, err, "the fence is held by claim %s, epoch %d, owner %q", stale.Held.Claim, stale.Held.Epoch, stale.Held.Owner)
	}
	t.run.Observe(Stale{Ours: at, Held: stale.Held})
}

func (t *told) unclaimed(at epoch.Fence, n refusedClaim, err error, took, in time.Duration) {
	t.run.Observe(NotClaimed{Partition: t.id, Reason: reasonOf(err), Err: err, Took: took})
	switch n.pause {
	case haltPause:
		t.stopped(at, err, in)
		return
	case operatorPause:
		t.trouble(n.level, n.what, err, "next", nextOf(at), "reason", reasonOf(err), "retry_in", in)
	default:
		if !n.halted {
			t.logger.Log(context.Background(), n.level, n.what, "err", err, "retry_in", in)
			return
		}
		t.trouble(n.level, n.what, err, "reason", reasonOf(err), "remedy", t.remedy(), "retry_in", in)
	}
	t.halt(at, err, in)
}

func (t *told) stopped(at epoch.Fence, err error, in time.Duration) {
	t.trouble(slog.LevelError, "halted", err, "epoch", at.Epoch, "next", nextOf(at), "reason", reasonOf(err), "remedy", t.remedy(), "retry_in", in)
	t.halt(at, err, in)
}

// advanced reports a commit. left is what is left of the batch, and at the fence after it.
func (t *told) advanced(at epoch.Fence, did *part, left Batch, took time.Duration) {
	if at.Log == operate.JobLog {
		if due, d := t.tick.Moved(did.advance, did.messages, did.failed, took); due {
			d.Partition, d.Epoch, d.Claim, d.Owner = t.id, did.epoch, at.Claim, at.Owner
			t.run.recorder.Add(d)
		}
	}
	t.halted, t.recorded = false, ReasonNone
	if t.silent {
		t.silent = false
		t.run.lags.Moves(t.id)
	}
	failed := 0
	if did.failed != nil {
		failed = 1
	} else {
		t.run.troubles.Well(t.id)
	}
	t.run.Observe(Advanced{
		Partition: t.id, Epoch: did.epoch, From: did.advance.From, To: did.advance.To,
		Messages: len(did.messages), Failed: failed, Bytes: size(did.messages), Took: took,
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
func (t *told) failed(at epoch.Fence, offset epoch.Offset, attempt int, v verdict, in, took time.Duration) {
	var failure *HandlerError
	if v.finding == lastAttempt && errors.As(v.err, &failure) {
		t.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", v.err, "offset", failure.Offset, "attempt", failure.Attempts)
	}
	if v.action != retry || in == 0 {
		return
	}
	if at.Log == operate.JobLog {
		t.tick.Failed(offset, v.err, took)
	}
	if v.finding == transient {
		t.standstill(at, v.err, took, in)
	}
	if attempt > 0 {
		t.trouble(slog.LevelWarn, "message failed, trying again", v.err, "offset", offset, "attempt", attempt, "retry_in", in)
	} else {
		t.trouble(slog.LevelWarn, "transient failure, trying again", v.err, "offset", offset, "retry_in", in)
	}
	t.run.Observe(Retried{Partition: t.id, Offset: offset, Attempt: attempt, Reason: v.reason(), Err: v.err, RetryIn: in})
}

// standstill reports a partition that has not moved for long. took is the duration of the
// failed attempt, in the wait before the next one.
func (t *told) standstill(at epoch.Fence, err error, took, in time.Duration) {
	now := time.Now()
	if !t.still.Failed(now.Add(-took), now, in, t.tenure.Term()) {
		t.recordHalt(at, err)
		return
	}
	t.logger.Error("the partition does not move, trying again", "epoch", at.Epoch, "next", at.Next, "for", now.Sub(t.still.Since), "reason", reasonOf(err), "remedy", t.remedy(), "err", err)
	t.halt(at, err, in)
}

func (t *told) stoppedForGood(at epoch.Fence, err error) {
	t.logger.Error("halted; this process does not try it again", "epoch", at.Epoch, "next", nextOf(at), "reason", reasonOf(err), "remedy", t.remedy(), "err", err)
	t.halt(at, err, 0)
}

func (t *told) remedy() string { return "epochfence explain " + t.id.String() }

// halt reports a partition that is tried again after in, or never if in is 0.
func (t *told) halt(at epoch.Fence, err error, in time.Duration) {
	t.halted, t.silent = true, true
	t.recordHalt(at, err)
	read := at
	if at.Epoch == 0 {
		read = t.seen
	}
	t.run.lags.Halted(t.tenure, read)
	t.run.Observe(Halted{Partition: t.id, Epoch: at.Epoch, Next: nextOf(at), Reason: reasonOf(err), Err: err, RetryIn: in})
}

// recordHalt writes a halt with a new reason to the audit log, and again after each claim. The reason is
// in front of the error: tools find the remedy by it.
func (t *told) recordHalt(at epoch.Fence, err error) {
	if reason := reasonOf(err); t.halted && reason != t.recorded {
		t.recorded = reason
		t.decide(at, operate.DecidedHalt, err, "%v: %v", reason, err)
	}
}

// resumed reports the end of a halt when a look finds nothing wrong and there is nothing to apply.
// With messages, Advanced says so.
func (t *told) resumed(at epoch.Fence) {
	if !t.halted {
		return
	}
	t.halted, t.recorded = false, ReasonNone
	t.run.lags.Claimed(t.tenure, at)
	t.still.Moved()
	t.run.troubles.Well(t.id)
	t.decide(at, operate.DecidedRecovery, nil, "it has nothing to apply")
	t.run.Observe(Resumed{Partition: t.id, Epoch: at.Epoch, Next: at.Next})
}

// lost reports the loss of the partition. inFlight reports whether a transaction was open.
func (t *told) lost(at epoch.Fence, cause error, inFlight bool) {
	t.logger.Info("lost", "epoch", at.Epoch, "next", nextOf(at), "cause", cause)
	t.decide(at, operate.DecidedLoss, cause, "%v", cause)
	t.run.Observe(Lost{
		Partition: t.id, Epoch: at.Epoch, Next: nextOf(at), Reason: reasonOf(cause), Cause: cause, InFlight: inFlight,
	})
}

func (t *told) givenUp(at epoch.Fence, hangs Overdue) {
	t.logger.Error("given up to other processes, as a call for it hangs", "epoch", at.Epoch, "next", nextOf(at))
	t.run.Observe(Lost{Partition: t.id, Epoch: at.Epoch, Next: nextOf(at), Reason: ReasonHung, Cause: &hungError{hangs}, InFlight: true})
}

// nextOf returns the position of a fence, or -1 before the first claim.
func nextOf(at epoch.Fence) epoch.Offset {
	if at.Epoch == 0 {
		return -1
	}
	return at.Next
}

func (t *told) drained(at epoch.Fence) {
	t.logger.Info("drained", "epoch", at.Epoch, "next", nextOf(at))
	t.run.Observe(Drained{Partition: t.id, Epoch: at.Epoch, Next: nextOf(at)})
}

// replayed reports a try of a replay.
func (t *told) replayed(r *replay, what outcomeOfReplay, a answer) {
	about := []any{"dead_letter", r.ID, "offset", r.Message.Offset, "epoch", a.part.epoch}
	log := t.run.log(t.id)
	switch what {
	case replayed:
		log.Info("a dead letter was replayed", about...)
	case replayFailed:
		log.Error("the replay of a dead letter failed, and the dead letter stays", append(about, "err", a.err)...)
	case replayGone:
		log.Info("the replay of a dead letter was rolled back: it was withdrawn, discarded or done meanwhile", about...)
	case replayBroke:
		log.Warn("the replay of a dead letter ended the claim; if it was not committed, it stays requested", append(about, "err", a.err)...)
	default:
		log.Warn("the replay of a dead letter was rolled back, trying again", append(about, "err", a.err)...)
	}
	t.run.Observe(Replayed{
		Partition: t.id, Epoch: a.part.epoch, Offset: r.Message.Offset, DeadLetter: r.ID,
		Err: a.err, Final: what.final(), Took: a.took,
	})
}

// decide records a decision about the partition as this process last knew it. err is the cause.
func (t *told) decide(at epoch.Fence, kind operate.DecisionKind, err error, format string, args ...any) {
	t.run.recorder.Add(operate.Decision{
		Kind: kind, Partition: t.id, Epoch: at.Epoch, Claim: at.Claim, Owner: at.Owner,
		From: nextOf(at), To: nextOf(at), Reason: fmt.Sprintf(format, args...), TraceID: operate.TraceOf(err),
	})
}
