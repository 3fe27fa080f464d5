package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestWhatFollowsTheEndOfConsumingUnderAClaim(t *testing.T) {
	p := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	at := epoch.Origin{Partition: p}
	ours := epoch.Fence{Origin: at, Epoch: 7, Claim: epoch.ClaimID{1}, Next: 20, Applied: true}
	restored := ours
	restored.Epoch, restored.Claim, restored.Next = 5, epoch.ClaimID{2}, 12
	rolledBack := ours
	rolledBack.Next = 12
	later := ours
	later.Epoch, later.Claim, later.Next = 8, epoch.ClaimID{3}, 25
	other := p
	other.Number = 4
	stale := func(of epoch.Partition, held epoch.Fence) error {
		return fmt.Errorf("commit: %w", &epoch.StaleError{Partition: of, Held: held})
	}
	moved := func(next epoch.Offset) error { return &epoch.MovedError{Partition: p, Next: next} }
	inDoubt := fmt.Errorf("commit: %w", epoch.ErrInDoubt)
	for name, c := range map[string]struct {
		ours epoch.Fence
		out  outcome
		want step
		back epoch.Fence // what the sink went back to
	}{
		"revoked or lost":                        {ours, outcome{action: leave}, step{}, epoch.Fence{}},
		"a call hangs":                           {ours, outcome{action: abandon, hang: &hang{}}, step{}, epoch.Fence{}},
		"a later claim has the fence":            {ours, outcome{action: replaced, err: stale(p, later)}, step{pause: retryPause}, epoch.Fence{}},
		"an earlier claim has the fence":         {ours, outcome{action: replaced, err: stale(p, restored)}, step{pause: retryPause}, restored},
		"the fence of another partition":         {ours, outcome{action: replaced, err: stale(other, epoch.Fence{Origin: epoch.Origin{Partition: other}, Epoch: 1})}, step{pause: retryPause}, epoch.Fence{}},
		"the transaction set the position back":  {ours, outcome{action: claimAgain, own: true, err: moved(12)}, step{doubt: true, pause: retryPause}, epoch.Fence{}},
		"the transaction replaced the claim":     {ours, outcome{action: claimAgain, own: true, err: stale(p, restored)}, step{pause: retryPause}, epoch.Fence{}},
		"the position is ahead":                  {ours, outcome{action: claimAgain, err: moved(25)}, step{doubt: true, pause: retryPause}, epoch.Fence{}},
		"the position is behind":                 {ours, outcome{action: claimAgain, err: moved(12)}, step{pause: retryPause}, rolledBack},
		"a look finds an earlier fence":          {ours, outcome{action: claimAgain, err: &epoch.WentBackError{Was: ours, Now: restored}}, step{pause: retryPause}, restored},
		"an earlier fence, and never claimed":    {epoch.Fence{Origin: at}, outcome{action: replaced, err: stale(p, restored)}, step{pause: retryPause}, epoch.Fence{}},
		"in doubt":                               {ours, outcome{action: claimAgain, err: inDoubt}, step{doubt: true, pause: retryPause}, epoch.Fence{}},
		"the sink could not begin":               {ours, outcome{action: claimAgain, err: errHandler}, step{pause: retryPause}, epoch.Fence{}},
		"another system has seen a higher epoch": {ours, outcome{action: claimAbove, above: 40}, step{above: 40, pause: retryPause}, epoch.Fence{}},
		"a message failed for good":              {ours, outcome{action: halt, err: errHung}, step{keep: true, pause: haltPause}, epoch.Fence{}},
		"halted, and the fence is earlier":       {ours, outcome{action: halt, err: stale(p, restored)}, step{keep: true, pause: haltPause}, epoch.Fence{}},
		"halted, and in doubt":                   {ours, outcome{action: haltInDoubt, err: inDoubt}, step{doubt: true, pause: haltPause}, epoch.Fence{}},
		"the handler ended the transaction":      {ours, outcome{action: haltForGood, err: epoch.ErrTxEndedByHandler}, step{never: true, pause: noEnd}, epoch.Fence{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := next(c.ours, c.out)
			if (got.back != nil) != (c.back != epoch.Fence{}) || got.back != nil && got.back.Now != c.back {
				t.Errorf("went back to %+v; want %+v", got.back, c.back)
			}
			if got.back = nil; got != c.want {
				t.Errorf("%+v; want %+v", got, c.want)
			}
		})
	}
}

func TestWhatFollowsAClaimThatWasNotMade(t *testing.T) {
	unconfirmed := &unconfirmedError{epoch.Partition{Topic: "orders"}, errors.New("rebalance")}
	for name, c := range map[string]struct {
		err         error
		unconfirmed int
		want        refusedClaim
	}{
		"another one was quicker":  {fmt.Errorf("claim: %w", epoch.ErrStale), 0, refusedClaim{pause: retryPause, level: slog.LevelDebug, what: "another claim came first"}},
		"paused by an operator":    {epoch.ErrPaused, 0, refusedClaim{pause: operatorPause, halted: true, level: slog.LevelWarn, what: "paused"}},
		"another log":              {epoch.ErrLogChanged, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"another kind of lease":    {epoch.ErrForeignLease, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"no fence":                 {epoch.ErrMissing, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"in another database":      {epoch.ErrElsewhere, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"a sink that cannot":       {epoch.ErrUnhealthy, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"a source that is blocked": {&unconfirmedError{epoch.Partition{}, ErrBlocked}, 0, refusedClaim{pause: haltPause, halted: true, level: slog.LevelError, what: "halted"}},
		"not confirmed":            {unconfirmed, 1, refusedClaim{pause: retryPause, unconfirmed: true, level: slog.LevelInfo, what: "lease not confirmed, asking again"}},
		"not confirmed again":      {unconfirmed, 2, refusedClaim{pause: retryPause, halted: true, level: slog.LevelWarn, what: notClaimed}},
		"the sink is not there":    {errors.New("connection refused"), 0, refusedClaim{pause: retryPause, halted: true, level: slog.LevelWarn, what: notClaimed}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := nextClaim(c.err, c.unconfirmed); got != c.want {
				t.Errorf("%+v; want %+v", got, c.want)
			}
		})
	}
}
