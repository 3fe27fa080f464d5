package stats

import (
	"math"
	"time"
)

// rateTime is over how long rates are smoothed: what came so long ago counts a third.
const rateTime = 10 * time.Second

// rate is how much there is in a second, lately. The zero value is none.
type rate struct {
	at    time.Time
	value float64 // in a second, then
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
