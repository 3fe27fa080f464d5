package show

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// incident is one freeze or kill of a schedule.
type incident struct {
	after  float64 // the fraction of the load that is sent when it begins
	worker int     // the victim: the n-th worker ever started, or the next one that holds a partition
	kill   bool    // SIGKILL; otherwise SIGSTOP
	at     Point   // where it strikes
}

// newSchedule draws n incidents from seed, alternating freezes and kills, for a crew that starts
// with so many workers. Each kind goes through its points in turn.
func newSchedule(seed uint64, n, workers int, freezes, kills []Point) []incident {
	r := rand.New(rand.NewPCG(seed, 0x5ced))
	is := make([]incident, n)
	for i := range is {
		points := freezes
		if i%2 == 1 {
			points = kills
		}
		is[i] = incident{
			after: (float64(i) + 0.4 + 0.3*r.Float64()) / float64(n+1),
			// A killed worker has been replaced by the next number.
			worker: i/2 + 1 + r.IntN(workers),
			kill:   i%2 == 1,
			at:     points[i/2%len(points)],
		}
	}
	return is
}

// incidents returns the number of incidents for a load of that duration: one for each period of
// length every, and at least a freeze and a kill.
func incidents(load, every time.Duration) int {
	return max(2, int(load/every))
}

// pace spreads a load evenly over a time. It holds back a share for each coming incident, because
// an incident needs a message to strike at.
type pace struct {
	total int
	over  time.Duration
	share int // held back for each incident

	begin  time.Time
	sent   atomic.Int64
	coming atomic.Int64 // incidents that have not released their share
}

func newPace(total int, over time.Duration, incidents int) *pace {
	p := &pace{total: total, over: over, share: total / (4 * (incidents + 1))}
	p.coming.Store(int64(incidents))
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
		to = min(to, p.total-int(p.coming.Load())*p.share)
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

// Sent returns the number of messages that next has let through.
func (p *pace) Sent() int { return int(p.sent.Load()) }

// release releases the messages held back for one incident.
func (p *pace) release() { p.coming.Add(-1) }
