package tenures_test

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

func at(e epoch.Epoch, next epoch.Offset) epoch.Fence { return epoch.Fence{Epoch: e, Next: next} }

func learn(t *testing.T, p *tenures.Position, theirs epoch.Offset) {
	t.Helper()
	if err := p.Learn(func() (epoch.Offset, bool, error) { return theirs, true, nil }); err != nil {
		t.Fatal(err)
	}
}

// R8: nothing takes back what others had committed.
func TestWhatOthersHadCommittedStaysUntilOursHasPassedIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fence epoch.Fence
		stays bool
	}{
		"ours is below":                    {at(1, 99), true},
		"ours is the same":                 {at(1, 100), false},
		"ours is above":                    {at(1, 101), false},
		"the partition was never claimed":  {at(0, 101), true},
		"it was not claimed, and is below": {at(0, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p tenures.Position
			if _, stays := p.Theirs(c.fence); stays {
				t.Error("before anything is known of others")
			}
			learn(t, &p, 100)
			if theirs, stays := p.Theirs(c.fence); stays != c.stays || stays && theirs != 100 {
				t.Errorf("Theirs = %d, %v; want it to stay: %v", theirs, stays, c.stays)
			}
			say, again := toSay(&p, c.fence), toSay(&p, c.fence)
			if say != (c.stays && c.fence.Epoch > 0) || again {
				t.Error("that ours is below is to be said once")
			}
			p.Published(100)
			if _, stays := p.Theirs(at(1, 1)); stays {
				t.Error("a position of ours was published, and theirs stays")
			}
		})
	}
}

func toSay(p *tenures.Position, at epoch.Fence) bool {
	_, say := p.ToSay(at)
	return say
}

func TestThatOthersHaveSetThePositionElsewhereIsSaidOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claimed, mirrored epoch.Fence
		say               bool
	}{
		"below":        {at(3, 101), at(4, 101), true},
		"above":        {at(3, 99), at(4, 99), true},
		"where we are": {at(3, 100), at(4, 105), false},
		"where we began, and have gone on from it": {at(0, 0), at(1, 105), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p tenures.Position
			p.Claims(c.claimed)
			if toSay(&p, c.claimed) {
				t.Error("before anything is known of others")
			}
			learn(t, &p, 100)
			if toSay(&p, c.mirrored) != c.say || toSay(&p, c.mirrored) {
				t.Errorf("said, and said once: want %v", c.say)
			}
		})
	}
}

func TestOthersAreAskedForUntilThereIsAnAnswer(t *testing.T) {
	t.Parallel()
	var p tenures.Position
	down := errors.New("down")
	if err := p.Learn(func() (epoch.Offset, bool, error) { return 0, false, down }); !errors.Is(err, down) {
		t.Errorf("Learn = %v", err)
	}
	learn(t, &p, 100)
	err := p.Learn(func() (epoch.Offset, bool, error) {
		t.Error("asked again")
		return 0, false, nil
	})
	if _, stays := p.Theirs(at(1, 5)); err != nil || !stays {
		t.Errorf("%v; stays: %v", err, stays)
	}
}

func TestAPositionIsPublishedUntilTheSourceHasIt(t *testing.T) {
	t.Parallel()
	var p tenures.Position
	want := func(when string, next epoch.Offset, due bool) {
		t.Helper()
		if f, ok := p.Unpublished(); ok != due || due && f.Next != next {
			t.Errorf("%s: %d, %v; want %d, %v", when, f.Next, ok, next, due)
		}
	}
	want("at first", 0, false)
	p.Mirror(at(1, 0))
	want("zero is a position", 0, true)
	p.Published(0)
	want("published", 0, false)
	p.Mirror(at(1, 5))
	p.Mirror(at(1, 7))
	want("the newest counts", 7, true)
	p.Published(5)
	want("an older one was published", 7, true)
	p.Published(7)
	want("published again", 0, false)
	p.Mirror(at(2, 3))
	want("somebody has set the fence back", 3, true)
}

func TestAPositionThatAPersonHasSetIsPublishedBelowTheirs(t *testing.T) {
	t.Parallel()
	var p tenures.Position
	learn(t, &p, 100)
	f := at(3, 5)
	if theirs, stays := p.Theirs(f); !stays || theirs != 100 {
		t.Errorf("a position below theirs: %d, %v", theirs, stays)
	}
	f.SetUnder = 2
	if theirs, stays := p.Theirs(f); stays {
		t.Errorf("one that an operator has set: %d stays", theirs)
	}
}

func TestAPositionThatWasPublishedUnderAClaimOfAnotherSinkIsTold(t *testing.T) {
	t.Parallel()
	ours, other := epoch.NewClaimID(), epoch.NewClaimID()
	before := tenures.Claimed{Epoch: 7, Claim: other, Next: 40}
	for name, c := range map[string]struct {
		epoch epoch.Epoch
		claim epoch.ClaimID
		want  bool
	}{
		"the sink has that claim":           {7, other, false},
		"it has had a later one":            {8, ours, false},
		"it has another one by that number": {7, ours, true},
		"it has only earlier ones":          {6, ours, true},
		"it was never claimed":              {0, epoch.ClaimID{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p tenures.Position
			p.LearnClaim(before)
			p.Compare(epoch.Fence{Epoch: c.epoch, Claim: c.claim})
			if at, is := p.PublishedElsewhere(); is != c.want || is && (at.Epoch != 7 || at.Claim != other || at.Next != 40) {
				t.Errorf("published elsewhere: %v, %+v; want %v", is, at, c.want)
			}
			p.Compare(epoch.Fence{Epoch: 9, Claim: ours}) // another claim of this sink came first
			if _, is := p.PublishedElsewhere(); is {
				t.Error("it is told although the sink has a later claim")
			}
		})
	}
}
