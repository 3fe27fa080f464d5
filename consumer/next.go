package consumer

import (
	"errors"
	"log/slog"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/epoch"
)

// This file decides what follows the end of a claim, or a failed one. It does not act, log or wait.

// step is what a tenure does before it claims again.
type step struct {
	keep  bool // keep the claim: nothing is in doubt
	above epoch.Epoch
	back  *epoch.WentBackError // the sink went back: consuming resumes where the sink is
	doubt bool                 // the next claim finds out what became of a transaction
	never bool                 // no process of this Run claims the partition again
	pause pause
}

// pause says how long a tenure waits before its next claim.
type pause int

const (
	none          pause = iota
	retryPause          // Options.RetryMin to RetryMax
	haltPause           // Options.HaltMin to HaltMax
	operatorPause       // like haltPause, at most pausedMax: an operator has paused the partition
	noEnd               // until the tenure is over
)

// next returns what follows the end of consuming under the claim of ours.
func next(ours epoch.Fence, out outcome) step {
	if !out.own && (out.action == replaced || out.action == claimAgain) {
		if back := wentBack(ours, out.err); back != nil {
			return step{back: back, pause: retryPause}
		}
	}
	switch out.action {
	case replaced:
		return step{pause: retryPause}
	case claimAgain:
		return step{doubt: inDoubt(out.err), pause: retryPause}
	case claimAbove:
		return step{above: out.above, pause: retryPause}
	case halt:
		return step{keep: true, pause: haltPause}
	case haltInDoubt:
		return step{doubt: true, pause: haltPause}
	case haltForGood:
		return step{never: true, pause: noEnd}
	default: // leave, abandon: the tenure is over
		return step{}
	}
}

// inDoubt reports whether effects may be committed of which this process does not know. If not, the
// transaction did not begin, or its rollback is known.
func inDoubt(err error) bool {
	return errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrMoved)
}

// wentBack returns an error if the sink has lost what it had. A sink that was restored has an older
// claim or position than ours, and refuses us as it does after a takeover. Without this case, the
// partition would be given up as stale although no other process has it.
func wentBack(ours epoch.Fence, refusal error) *epoch.WentBackError {
	now, ok := fenceAt(ours, refusal)
	if !ok {
		return nil
	}
	return since(ours, now)
}

// since compares two fences of one sink. A zero epoch means that this process has never claimed the
// partition, and has nothing to compare.
func since(ours, now epoch.Fence) *epoch.WentBackError {
	var back *epoch.WentBackError
	if ours.Epoch == 0 || !errors.As(ours.CheckUnchanged(now), &back) {
		return nil
	}
	return back
}

// fenceAt returns the fence that a refusal has found. A refused position says nothing of the claim,
// so it is ours with the other position.
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

// refusedClaim says how to go on after an attempt to claim failed, and how to report it.
type refusedClaim struct {
	pause       pause
	unconfirmed bool // the source did not confirm the lease, as in an ordinary rebalance
	halted      bool // observers get a Halted: the partition does not move
	level       slog.Level
	what        string
}

// ordinaryRefusals is how many confirmations in a row may be refused without a warning.
const ordinaryRefusals = 2

// nextClaim returns what follows a failed claim, after unconfirmed refused confirmations in a row.
func nextClaim(err error, unconfirmed int) refusedClaim {
	var no *unconfirmedError
	switch {
	// Another process was faster between our read and our swap. The source decides in the next
	// confirmation which of the two may go on.
	case errors.Is(err, epoch.ErrStale):
		return refusedClaim{pause: retryPause, level: slog.LevelDebug, what: "another claim came first"}
	case errors.Is(err, epoch.ErrPaused):
		return refusedClaim{pause: operatorPause, halted: true, level: slog.LevelWarn, what: "paused"}
	case needsOperator(err):
		return refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}
	case errors.As(err, &no) && unconfirmed < ordinaryRefusals:
		return refusedClaim{pause: retryPause, unconfirmed: true, level: slog.LevelInfo, what: "lease not confirmed, asking again"}
	default:
		return refusedClaim{pause: retryPause, halted: true, level: slog.LevelWarn, what: notClaimed}
	}
}

// notClaimed is the incident that a claim ends.
const notClaimed = aside.NotClaimed

// needsOperator reports whether only an operator can resolve the refusal of a claim.
func needsOperator(err error) bool {
	return errors.Is(err, epoch.ErrLogChanged) || errors.Is(err, epoch.ErrForeignLease) ||
		errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrElsewhere) || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, ErrBlocked)
}
