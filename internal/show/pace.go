package show

import (
	"context"
	"sync"
	"time"
)

// Pace spreads a load evenly over a time. It holds back a share for each coming incident, because
// an incident needs a message to strike at. It is safe for concurrent use.
type Pace struct {
	total int
	over  time.Duration
	share int // held back for each incident

	mu       sync.Mutex
	begin    time.Time
	sent     int
	coming   int           // incidents that have not released their share
	released chan struct{} // closed and replaced by Release
}

// NewPace spreads total messages over a time, beginning with the first [Pace.Wait].
func NewPace(total int, over time.Duration, incidents int) *Pace {
	return &Pace{
		total: total, over: over, share: total / (4 * (incidents + 1)),
		coming: incidents, released: make(chan struct{}),
	}
}

// burst is the time between two sends. Load comes in bursts, so that workers have more than one
// message in hand.
const burst = 200 * time.Millisecond

// Wait waits until messages may be sent, and returns their number. It counts them as sent. It
// returns zero when all have been sent.
func (p *Pace) Wait(ctx context.Context) (int, error) {
	for {
		n, released := p.take()
		if n != 0 || released == nil {
			return n, nil
		}
		timer := time.NewTimer(burst)
		select {
		case <-timer.C:
		case <-released:
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// take returns a nil channel when all messages have been sent.
func (p *Pace) take() (n int, released <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begin.IsZero() {
		p.begin = time.Now()
	}
	if p.sent == p.total {
		return 0, nil
	}
	due := p.total
	if past := time.Since(p.begin).Truncate(burst); past < p.over {
		due = int(float64(p.total) * past.Seconds() / p.over.Seconds())
	}
	due = min(due, p.total-p.coming*p.share)
	n = max(0, due-p.sent)
	p.sent += n
	return n, p.released
}

// Sent returns the number of messages that [Pace.Wait] has let through.
func (p *Pace) Sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// Release releases the messages held back for one incident.
func (p *Pace) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.coming > 0 {
		p.coming--
	}
	close(p.released)
	p.released = make(chan struct{})
}
