package consumer

import (
	"errors"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
)

// What the end of consuming under a claim, and a claim that was not made, mean for the next
// claim. Nothing here acts, logs or waits.

// step is what a tenure does before it claims again.
type step struct {
	keep  bool                 // the claim: nothing is in doubt
	above epoch.Epoch          // the next claim's epoch is higher than this
	back  *epoch.WentBackError // the sink went back: consuming resumes where the sink is
	doubt bool                 // the next claim finds out what became of a transaction
	never bool                 // no process of this Run claims the partition again
	pause pause
}

// pause is how long a tenure waits before it claims again.
type pause int

const (
	none          pause = iota
	retryPause          // Options.RetryMin to RetryMax
	haltPause           // Options.HaltMin to HaltMax
	operatorPause       // likewise, and pausedMax at most: an operator has paused the partition
	noEnd               // until the tenure is over
)

// next returns what follows the end of consuming under a claim whose fence was ours.
func next(ours epoch.Fence, out outcome) step {
	if out.action == giveUp || out.action == claimAgain {
		if back := wentBack(ours, out.err); back != nil {
			return step{back: back, pause: retryPause}
		}
	}
	switch out.action {
	case giveUp:
		return step{pause: retryPause}
	case claimAgain:
		return step{doubt: true, pause: retryPause}
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

// wentBack returns the error of a sink that went back, where a refusal shows that it did.
func wentBack(ours epoch.Fence, refusal error) *epoch.WentBackError {
	now, ok := fenceAt(ours, refusal)
	if !ok {
		return nil
	}
	return since(ours, now)
}

// since returns the error of a sink that went back since the fence was ours.
func since(ours, now epoch.Fence) *epoch.WentBackError {
	var back *epoch.WentBackError
	if ours.Epoch == 0 || !errors.As(ours.CheckUnchanged(now), &back) {
		return nil
	}
	return back
}

// fenceAt returns the fence that a refusal shows, of a partition whose fence we left
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

// refusedClaim is what a claim that was not made means.
type refusedClaim struct {
	pause       pause
	unconfirmed bool // the source did not confirm the lease, as in an ordinary rebalance
	halted      bool // observers are told that the partition stands still
	level       slog.Level
	what        string
}

// ordinaryRefusals is how many confirmations in a row a source may refuse before that is
// worth a warning.
const ordinaryRefusals = 2

// nextClaim returns what follows a claim that failed, after so many in a row that the
// source had not confirmed.
func nextClaim(err error, unconfirmed int) refusedClaim {
	var no *unconfirmedError
	switch {
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

// needsOperator tells the refusals of a claim that no waiting resolves from those
// that pass.
func needsOperator(err error) bool {
	return errors.Is(err, epoch.ErrLogChanged) || errors.Is(err, epoch.ErrForeignLease) ||
		errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrElsewhere) || errors.Is(err, epoch.ErrUnhealthy)
}
