package epoch_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestStillTellsASinkThatWentBackFromALaterClaim(t *testing.T) {
	ours, other := epoch.ClaimID{1}, epoch.ClaimID{2}
	was := epoch.Fence{Epoch: 8, Claim: ours, Next: 1400}
	for name, c := range map[string]struct {
		epoch epoch.Epoch
		claim epoch.ClaimID
		next  epoch.Offset
		want  error
		says  string
	}{
		"as it was":                                 {8, ours, 1400, nil, ""},
		"a later claim":                             {9, other, 1400, epoch.ErrStale, "epoch 9"},
		"a later claim that has gone on":            {9, other, 1500, epoch.ErrStale, "epoch 9"},
		"set forward by hand":                       {8, ours, 1500, epoch.ErrMoved, "is at offset 1500"},
		"advances are lost":                         {8, ours, 1000, epoch.ErrWentBack, "unless it was set back by hand"},
		"the claim is lost":                         {7, other, 1400, epoch.ErrWentBack, "claims of this partition were lost"},
		"claim and advances are lost":               {7, other, 1000, epoch.ErrWentBack, "it was at offset 1400 under epoch 8, now at 1000 under epoch 7; the effects of 400 offsets were lost"},
		"the claim is lost, its epoch is another's": {8, other, 1400, epoch.ErrWentBack, "claims of this partition were lost"},
		"lost, and claimed again by another":        {9, other, 1000, epoch.ErrWentBack, "now at 1000 under epoch 9"},
		"every claim is lost":                       {0, epoch.ClaimID{}, 0, epoch.ErrWentBack, "now at 0 under epoch 0"},
	} {
		err := was.CheckUnchanged(epoch.Fence{Epoch: c.epoch, Claim: c.claim, Next: c.next})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
}

func TestAPositionThatAPersonHasSetIsNoSinkThatWentBack(t *testing.T) {
	ours, other := epoch.ClaimID{1}, epoch.ClaimID{2}
	was := epoch.Fence{Epoch: 8, Claim: ours, Next: 1400, SetUnder: 3}
	for name, c := range map[string]struct {
		epoch, set epoch.Epoch
		next       epoch.Offset
		want       error
	}{
		"set back":                        {9, 9, 1000, epoch.ErrStale},
		"set back, and claimed again":     {10, 9, 1100, epoch.ErrStale},
		"set back before we claimed it":   {9, 3, 1000, epoch.ErrWentBack},
		"set back in a sink that is lost": {7, 7, 1000, epoch.ErrWentBack},
	} {
		now := epoch.Fence{Epoch: c.epoch, Claim: other, Next: c.next, SetUnder: c.set}
		if err := was.CheckUnchanged(now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
