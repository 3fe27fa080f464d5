package show

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// pace spreads a load evenly over a time. It holds back two shares for each coming incident, because
// an incident needs a message to strike at, and then one at which another worker goes on.
type pace struct {
	total int
	over  time.Duration
	share int

	begin time.Time
	sent  atomic.Int64
	held  atomic.Int64 // shares that are held back
}

func newPace(total int, over time.Duration, incidents int) *pace {
	p := &pace{total: total, over: over, share: total / (2 * (2*incidents + 1))}
	p.held.Store(2 * int64(incidents))
	return p
}

// burst is the time between two sends. Load comes in bursts, so that workers have more than one
// message in hand.
const burst = 200 * time.Millisecond

// next waits until messages may be sent, and returns their range [from, to), which it counts as
// sent. The range is empty when all have been sent. Only one goroutine calls it.
func (p *pace) next(ctx context.Context) (from, to int, err error) {
	if p.begin.IsZero() {
		p.begin = time.Now()
	}
	for from = int(p.sent.Load()); from < p.total; {
		to = p.total
		if past := time.Since(p.begin).Truncate(burst); past < p.over {
			to = int(float64(p.total) * past.Seconds() / p.over.Seconds())
		}
		to = min(to, p.total-int(p.held.Load())*p.share)
		if to > from {
			p.sent.Store(int64(to))
			return from, to, nil
		}
		if !backoff.Sleep(ctx, burst) {
			return 0, 0, context.Cause(ctx)
		}
	}
	return from, from, nil
}

// release releases a share.
func (p *pace) release() { p.held.Add(-1) }
