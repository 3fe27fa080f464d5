package stats

import (
	"math"
	"time"
)

// This file computes the present rates, which decay, for the status page. Prometheus computes its
// own.

// rateTime is the time constant of the smoothing: what happened rateTime ago counts 1/e.
const rateTime = 10 * time.Second

// rate is an exponentially smoothed amount per second. The zero value is zero.
type rate struct {
	at    time.Time
	value float64 // per second, at that time
}

func (r *rate) add(now time.Time, n float64) {
	r.value = r.now(now) + n/rateTime.Seconds()
	r.at = now
}

func (r *rate) now(now time.Time) float64 {
	if r.value == 0 {
		return 0
	}
	return r.value * math.Exp(-float64(now.Sub(r.at))/float64(rateTime))
}
