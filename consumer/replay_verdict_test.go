package consumer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func TestTheVerdictOnAReplay(t *testing.T) {
	tried := trial{partition: epoch.Partition{Topic: "orders", Number: 3}, messages: 1}
	lost := tried
	lost.lost = true
	stale := &epoch.StaleError{Partition: tried.partition}
	bad := errors.New("no such item")
	unhealthy := fmt.Errorf("no disk: %w", epoch.ErrUnhealthy)
	deadlock := fmt.Errorf("deadlock: %w", epoch.ErrTransient)
	inDoubt := fmt.Errorf("connection lost: %w", epoch.ErrInDoubt)
	const last = maxReplayTries - 1
	for name, c := range map[string]struct {
		t     trial
		r     result
		tries int
		want  replayVerdict
	}{
		"committed": {tried, result{called: true}, 2, replayVerdict{what: replayed}},
		"the handler ended the transaction": {tried, result{err: epoch.ErrTxEndedByHandler, called: true}, 2,
			replayVerdict{what: replayBroke, broke: outcome{action: haltForGood, err: epoch.ErrTxEndedByHandler}, tries: 2}},
		"a later claim has the fence":       {tried, result{err: stale, called: true}, 2, replayVerdict{what: replayBroke, broke: outcome{action: replaced, err: stale}, tries: 3}},
		"in doubt":                          {tried, result{err: inDoubt, called: true}, 2, replayVerdict{what: replayBroke, broke: outcome{action: claimAgain, err: inDoubt, beside: true}, tries: 3}},
		"in doubt again and again":          {tried, result{err: inDoubt, called: true}, last, replayVerdict{what: replayBroke, broke: outcome{action: claimAgain, err: inDoubt, beside: true}, failed: true}},
		"in doubt by a freeze":              {tried, result{err: inDoubt, called: true, froze: time.Second}, last, replayVerdict{what: replayBroke, broke: outcome{action: claimAgain, err: inDoubt, beside: true}, tries: last}},
		"the lease is lost":                 {lost, result{err: bad, called: true, handler: bad}, 2, replayVerdict{what: replayAgain, tries: 2}},
		"the sink could not begin":          {tried, result{err: bad}, 2, replayVerdict{what: replayAgain, tries: 2}},
		"a freeze":                          {tried, result{err: bad, called: true, handler: bad, froze: time.Second}, 2, replayVerdict{what: replayAgain, tries: 2}},
		"an unhealthy database":             {tried, result{err: unhealthy, called: true}, 2, replayVerdict{what: replayAgain, tries: 2}},
		"unhealthy, by the handler's word":  {tried, result{err: unhealthy, called: true, handler: Permanent(unhealthy)}, 2, replayVerdict{what: replayFailed, failed: true}},
		"a deadlock":                        {tried, result{err: deadlock, called: true}, 2, replayVerdict{what: replayTries, tries: 3}},
		"a deadlock again and again":        {tried, result{err: deadlock, called: true}, last, replayVerdict{what: replayFailed, failed: true}},
		"a deadlock, by the handler's word": {tried, result{err: deadlock, called: true, handler: Permanent(deadlock)}, 2, replayVerdict{what: replayFailed, failed: true}},
		"withdrawn meanwhile":               {tried, result{err: operate.ErrRowChanged, called: true}, 2, replayVerdict{what: replayGone}},
		"the handler says so":               {tried, result{err: operate.ErrRowChanged, called: true, handler: operate.ErrRowChanged}, 2, replayVerdict{what: replayFailed, failed: true}},
		"the handler failed":                {tried, result{err: bad, called: true, handler: bad}, 2, replayVerdict{what: replayFailed, failed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judgeReplay(c.t, c.r, c.tries); got != c.want {
				t.Errorf("%+v; want %+v", got, c.want)
			}
		})
	}
}
