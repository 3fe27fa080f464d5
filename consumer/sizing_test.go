package consumer

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSizing(t *testing.T) {
	const timeout = 10 * time.Second
	applied := func(messages int, took time.Duration) func(*sizing) {
		return func(s *sizing) { s.applied(messages, took, timeout) }
	}
	refused := func(messages int, took time.Duration) func(*sizing) {
		return func(s *sizing) { s.refused(messages, took) }
	}
	tooMany := func(messages int) func(*sizing) { return func(s *sizing) { s.tooMany(messages) } }
	for name, c := range map[string]struct {
		capacity int
		cooldown time.Duration
		then     []func(*sizing)
		want     int
	}{
		"what is quick may grow":                         {16, 0, []func(*sizing){applied(16, time.Millisecond)}, 32},
		"up to MaxBatch":                                 {700, 0, []func(*sizing){applied(700, time.Millisecond)}, 1000},
		"what has left much of its room stays":           {16, 0, []func(*sizing){applied(8, time.Millisecond)}, 16},
		"what takes some of its time stays":              {16, 0, []func(*sizing){applied(16, time.Second)}, 16},
		"what takes a quarter of its time is halved":     {800, 0, []func(*sizing){applied(800, 3*time.Second)}, 400},
		"but not below 256, as the commit may be it":     {300, 0, []func(*sizing){applied(300, 3*time.Second)}, 256},
		"what takes all of its time is halved":           {16, 0, []func(*sizing){tooMany(16)}, 8},
		"down to one":                                    {2, 0, []func(*sizing){tooMany(2), tooMany(1)}, 1},
		"what is refused is much smaller the next time":  {160, 0, []func(*sizing){refused(160, time.Millisecond)}, 20},
		"also where it was smaller than it might be":     {160, 0, []func(*sizing){refused(16, time.Millisecond)}, 2},
		"what is refused again is one message":           {160, 0, []func(*sizing){refused(160, time.Millisecond), refused(20, time.Millisecond)}, 1},
		"it does not grow before it has earned the loss": {1, 0, []func(*sizing){refused(1, time.Second), applied(1, 15*time.Second/10)}, 1},
		"it grows once it has":                           {1, 0, []func(*sizing){refused(1, time.Millisecond), applied(1, 8*time.Millisecond), applied(1, 8*time.Millisecond)}, 2},
		"time that is owed is not gained by slowness":    {1, time.Hour, []func(*sizing){applied(1, time.Millisecond)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSizing(1000, 1000)
			s.capacity, s.cooldown = c.capacity, c.cooldown
			for _, then := range c.then {
				then(&s)
			}
			if s.capacity != c.want {
				t.Errorf("the next transaction takes %d messages, want %d", s.capacity, c.want)
			}
		})
	}
}

func TestOnlyBriefTransactionsGrowBeyondTheUsualSize(t *testing.T) {
	const timeout = 10 * time.Second
	for name, c := range map[string]struct {
		capacity int
		took     time.Duration
		want     int
	}{
		"a brief one grows":                     {usualCapacity, brief, 2 * usualCapacity},
		"up to the most":                        {maxCapacity, time.Millisecond, maxCapacity},
		"one that takes longer stays":           {usualCapacity, brief + 1, usualCapacity},
		"also if it is larger already":          {2 * usualCapacity, 2 * brief, 2 * usualCapacity},
		"one that takes far longer goes back":   {maxCapacity, 2*brief + 1, usualCapacity},
		"a smaller one may take longer":         {usualCapacity / 2, 2*brief + 1, usualCapacity},
		"one that takes a quarter of its time":  {maxCapacity, timeout/4 + 1, maxCapacity / 2},
		"and is of the usual size is halved":    {usualCapacity, timeout/4 + 1, usualCapacity / 2},
		"the usual size is no bound for others": {firstCapacity, timeout/16 - 1, 2 * firstCapacity},
		"one that takes a sixteenth stays":      {firstCapacity, timeout / 16, firstCapacity},
		"just a quarter of its time":            {firstCapacity + 2, timeout / 4, firstCapacity + 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSizing(maxCapacity, usualCapacity)
			s.capacity = c.capacity
			if s.applied(c.capacity, c.took, timeout); s.capacity != c.want {
				t.Errorf("the next transaction takes %d messages, want %d", s.capacity, c.want)
			}
		})
	}
	s := newSizing(maxCapacity, usualCapacity)
	s.capacity = maxCapacity
	if s.applied(usualCapacity, 2*brief+1, timeout); s.capacity != maxCapacity {
		t.Errorf("a slow one of the usual size makes the next one take %d", s.capacity)
	}
}

func TestATransactionThatDidNotFitIsHalvedAndHasToBeEarned(t *testing.T) {
	s := newSizing(1000, 1000)
	if s.tooLarge(200, 10*time.Millisecond); s.capacity != 100 || s.cooldown != 160*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if s.tooLarge(100, 20*time.Millisecond); s.capacity != 50 || s.cooldown != 480*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if s.tooLarge(1, time.Hour); s.capacity != 1 || s.cooldown != maxCooldown {
		t.Errorf("%+v", s)
	}
}

func TestTheTypicalDurationFollowsAnEighthOfEachChange(t *testing.T) {
	s := newSizing(100, 50)
	if want := (sizing{most: 100, usual: 50, first: 100, capacity: 100, typical: 100 * time.Millisecond}); s != want {
		t.Errorf("%+v; want %+v", s, want)
	}
	if s.applied(1, 900*time.Millisecond, time.Minute); s.typical != 200*time.Millisecond {
		t.Errorf("%v after one that took 900 ms", s.typical)
	}
	if s.applied(1, 40*time.Millisecond, time.Minute); s.typical != 180*time.Millisecond {
		t.Errorf("%v after one that took 40 ms", s.typical)
	}
}

// Transactions of more than so many messages fail, whatever one costs: the time
// lost by them stays a small part of the whole.
func TestSizingLosesLittleTimeOverTransactionsThatAreTooLarge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch := rapid.IntRange(1, 10_000).Draw(t, "MaxBatch")
		fit := rapid.IntRange(1, 64).Draw(t, "as many fit")
		each := time.Duration(rapid.Int64Range(int64(10*time.Microsecond), int64(10*time.Millisecond)).Draw(t, "each takes"))
		commit := time.Duration(rapid.Int64Range(0, int64(10*time.Millisecond)).Draw(t, "and the commit"))
		waits := time.Duration(rapid.Int64Range(0, int64(maxLockWait)).Draw(t, "a refusal comes after"))
		s := newSizing(batch, rapid.IntRange(1, batch).Draw(t, "of which usual are"))
		var lost, spent time.Duration
		for spent < time.Minute {
			if n := s.capacity; n > fit {
				took := time.Duration(min(n, 2*fit))*each + waits
				lost, spent = lost+took, spent+took
				s.refused(n, took)
			} else {
				took := time.Duration(n)*each + commit
				spent += took
				s.applied(n, took, time.Minute)
			}
		}
		if lost > spent/10 {
			t.Errorf("%v of %v were lost", lost, spent)
		}
	})
}

func TestWaitsForLocksAreShortFirstAndThenAsLongAsTheSinkAllows(t *testing.T) {
	s := newSizing(10, 10)
	s.typical = 0
	short := s.lockWait(0, 0)
	if long := s.lockWait(0, 0.99); short < time.Millisecond || long < 2*short || long > maxLockWait {
		t.Errorf("waits from %v to %v", short, long)
	}
	s.typical = time.Hour
	if d := s.lockWait(0, 0.99); d == 0 || d >= time.Second {
		t.Errorf("waits for %v, as long as PostgreSQL takes to find a deadlock", d)
	}
	if d := s.lockWait(2, 0.5); d != patience {
		t.Errorf("after two refusals it waits for %v, want %v", d, patience)
	}
	for refusals := 1; ; refusals++ {
		d := s.lockWait(refusals, 0.5)
		if d == 0 {
			break
		}
		if refusals > 10 {
			t.Fatalf("after %d refusals a message still waits for %v only", refusals, d)
		}
	}
}

// TestTheCapacityIsSharedWithoutLeavingAnyOfItToNobody: of what is ready, no partition takes
// fewer than another that has more, unless it has no more.
func TestTheCapacityIsSharedWithoutLeavingAnyOfItToNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ready := rapid.SliceOfN(rapid.IntRange(0, 300), 1, 20).Draw(t, "ready")
		capacity := rapid.IntRange(len(ready), 2000).Draw(t, "room")
		takes, all, taken := share(ready, capacity), 0, 0
		for i, n := range takes {
			all, taken = all+ready[i], taken+n
			if n > ready[i] || n == 0 && ready[i] > 0 {
				t.Errorf("of %d that are ready %d are taken", ready[i], n)
			}
			for j, m := range takes {
				if n < ready[i] && m > n+1 {
					t.Errorf("%d of %d are taken beside %d of %d", n, ready[i], m, ready[j])
				}
			}
		}
		if taken != min(all, capacity) {
			t.Errorf("%d are taken of %d that are ready, and there is room for %d", taken, all, capacity)
		}
	})
}
