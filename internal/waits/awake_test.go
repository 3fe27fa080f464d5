package waits

import (
	"testing"
	"time"
)

func TestTimeThatAProcessDidNotRunIsTold(t *testing.T) {
	began := time.Now()
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		ticks []float64
		slept time.Duration
	}{
		"on time":                   {[]float64{1, 2, 3}, 0},
		"a little late":             {[]float64{1.9, 3.5, 4.6}, 0},
		"frozen for a minute":       {[]float64{1, 62, 63}, time.Minute},
		"frozen before the first":   {[]float64{11, 12}, 10 * time.Second},
		"frozen twice":              {[]float64{11, 12, 33}, 30 * time.Second},
		"not longer than the ticks": {[]float64{3}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Awake{step: time.Second, last: began, left: awakeTicks}
			if name == "not longer than the ticks" {
				a.left = 0 // stopped
			}
			for _, s := range c.ticks {
				if a.tick(at(s)) {
					t.Fatal("over")
				}
			}
			if a.slept != c.slept {
				t.Errorf("slept for %v, want %v", a.slept, c.slept)
			}
		})
	}
	a := &Awake{step: time.Second, last: began, left: 2}
	if a.tick(at(60)) || !a.tick(at(61)) || a.tick(at(62)) {
		t.Error("what is late for a freeze counts as one tick, and the last one comes once")
	}
}
