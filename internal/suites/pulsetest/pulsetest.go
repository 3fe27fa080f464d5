// Package pulsetest measures how long a server has not answered, or the test's process has not run.
// A suite does not fail a history that has lost a lease during that time.
package pulsetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/waits"
)

// Every is how long a pulse rests between two requests: far shorter than a lease.
const Every = 50 * time.Millisecond

// Pulse is a request that is made all the time, as those do who renew a lease.
type Pulse struct {
	mu      sync.Mutex
	last    time.Time // a request was answered
	longest time.Duration
}

// Start makes requests until the test ends. An error is a request that was not answered.
func Start(t testing.TB, request func(context.Context) error) *Pulse {
	p := &Pulse{last: time.Now()}
	ctx, stop := context.WithCancel(context.Background())
	var beats sync.WaitGroup
	beats.Go(func() {
		for waits.Sleep(ctx, Every) {
			if request(ctx) == nil {
				p.answered(time.Now())
			}
		}
	})
	t.Cleanup(func() {
		stop()
		beats.Wait()
	})
	return p
}

func (p *Pulse) answered(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.longest, p.last = max(p.longest, now.Sub(p.last)), now
}

// Stalled is the longest time between two answers, until now if none has come since.
func (p *Pulse) Stalled() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.longest, time.Since(p.last))
}
