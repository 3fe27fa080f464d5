package aside

import (
	"testing"
	"time"
)

func TestAStandstillIsSaidOnceAndInTime(t *testing.T) {
	const term = 9 * time.Second
	var s Standstill
	began := time.Now()
	for i, step := range []struct {
		began, now, in int // seconds
		say            bool
	}{
		{0, 1, 1, false},
		{1, 2, 1, true}, // the next attempt comes when a third of the term is over
		{3, 9, 1, false},
		{10, 90, 9, false},
	} {
		at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
		if say := s.Failed(at(step.began), at(step.now), time.Duration(step.in)*time.Second, term); say != step.say {
			t.Errorf("step %d: say = %v", i, say)
		}
	}
	s.Moved()
	if s.Failed(began, began.Add(time.Second), 0, term) {
		t.Error("a first failure after the partition has moved is a standstill")
	}
	if !s.Failed(began, began.Add(5*time.Second), 0, term) {
		t.Error("an attempt that took more than half of the term is not said")
	}
}
