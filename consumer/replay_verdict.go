package consumer

import (
	"errors"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides what the result of a replay means. It does not act, log or wait.

type replayVerdict struct {
	what   outcomeOfReplay
	broke  outcome // with replayBroke: what ended the claim
	tries  int     // that count so far; 0 once the replay is settled
	failed bool    // the sink is to record that the replay has failed
}

// outcomeOfReplay says what became of a replay.
type outcomeOfReplay int

const (
	replayed     outcomeOfReplay = iota
	replayAgain                  // nothing is committed, and neither message nor handler is at fault
	replayTries                  // nothing is committed for a transient reason, and the try counts
	replayFailed                 // the message is still at fault
	replayGone                   // it was withdrawn, or is done
	replayBroke                  // the claim has ended, too
)

func (o outcomeOfReplay) final() bool {
	return o == replayed || o == replayFailed || o == replayGone
}

// maxReplayTries limits the tries of one request. A dead letter that deadlocks or ends its
// connection each time would otherwise disturb the partition for ever.
const maxReplayTries = 5

// judgeReplay decides on a replay. tries counts the failed tries before.
func judgeReplay(t trial, r result, tries int) replayVerdict {
	what, broke := resultOfReplay(t, r)
	kills := what == replayBroke && (inDoubt(r.err) || errors.Is(r.err, epoch.ErrStale)) && r.froze == 0 // its connection, or the claim
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

// resultOfReplay keeps the order of [policy.judge]: first a refusal, then doubt, then blame.
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
		return replayBroke, outcome{action: claimAgain, err: err, beside: true}
	case t.lost || !r.called || r.froze > 0 || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):
		return replayAgain, outcome{}
	case errors.Is(err, epoch.ErrTransient) && !isPermanent(r.handler):
		return replayTries, outcome{}
	case errors.Is(err, operate.ErrRowChanged) && r.handler == nil:
		return replayGone, outcome{}
	default:
		return replayFailed, outcome{}
	}
}
