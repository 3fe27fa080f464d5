package consumer

import (
	"errors"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// What the result of a replay's transaction means. As in verdict.go, nothing here acts, logs or
// waits.

// replayVerdict is what a result means for a replay.
type replayVerdict struct {
	what   outcomeOfReplay
	broke  outcome // with replayBroke: what ended the claim
	tries  int     // that count so far; 0 once the replay is settled
	failed bool    // the sink is to record that the replay has failed
}

type outcomeOfReplay int

const (
	replayed     outcomeOfReplay = iota
	replayAgain                  // nothing is committed, for a reason that has to do with neither
	replayTries                  // likewise, and it counts
	replayFailed                 // the message is still at fault
	replayGone                   // nobody wants it any more, or it is done
	replayBroke                  // the claim has ended with it
)

// final reports whether the replay is settled.
func (o outcomeOfReplay) final() bool {
	return o == replayed || o == replayFailed || o == replayGone
}

// maxReplayTries is how often a replay is tried that fails for reasons that pass.
const maxReplayTries = 5

// judgeReplay decides on a replay after so many tries that count.
func judgeReplay(t trial, r result, tries int) replayVerdict {
	what, broke := resultOfReplay(t, r)
	kills := what == replayBroke && errors.Is(r.err, epoch.ErrInDoubt) && r.froze == 0 // its connection
	if what == replayTries || kills {
		tries++
	}
	tired := tries >= maxReplayTries
	if tired && what == replayTries {
		what = replayFailed
	}
	v := replayVerdict{what: what, broke: broke, tries: tries, failed: what == replayFailed || tired && kills}
	if tired || what.final() {
		v.tries = 0
	}
	return v
}

// resultOfReplay decides as [policy.judge] does: a refusal by the fence comes before doubt,
// and doubt before blame.
func resultOfReplay(t trial, r result) (outcomeOfReplay, outcome) {
	v, whose := refusal(r.err)
	switch err := r.err; {
	case err == nil:
		return replayed, outcome{}
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return replayBroke, outcome{action: haltForGood, err: err}
	case whose == t.partition:
		return replayBroke, outcome{action: v.action, above: v.above, err: err}
	case errors.Is(err, epoch.ErrInDoubt):
		return replayBroke, outcome{action: claimAgain, err: err}
	case t.lost || !r.called || r.froze > 0 || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):
		return replayAgain, outcome{}
	case errors.Is(err, epoch.ErrTransient) && !isPermanent(r.handler):
		return replayTries, outcome{}
	case errors.Is(err, operate.ErrNotRequested) && r.handler == nil:
		return replayGone, outcome{}
	default:
		return replayFailed, outcome{}
	}
}
