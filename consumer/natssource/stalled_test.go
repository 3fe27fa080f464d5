package natssource

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/backoff"
)

// pulse writes to a server all the time, as those do who renew a lease, and notes
// for how long no write was answered.
type pulse struct {
	mu      sync.Mutex
	last    time.Time // a write was answered
	longest time.Duration
}

// pulseEvery is far shorter than a lease.
const pulseEvery = 50 * time.Millisecond

// startPulse writes to a stream of its own until the test ends.
func startPulse(t testing.TB, js jetstream.JetStream, name string, replicas int) *pulse {
	p := &pulse{}
	insist(t, func(ctx context.Context) error {
		return second(js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Replicas: replicas, MaxMsgs: 1,
		}))
	})
	ctx, stop := context.WithCancel(context.Background())
	var beats sync.WaitGroup
	p.last = time.Now()
	beats.Go(func() {
		for backoff.Sleep(ctx, pulseEvery) {
			p.beat(ctx, js.Conn(), name)
		}
	})
	t.Cleanup(func() {
		stop()
		beats.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = js.DeleteStream(ctx, name)
	})
	return p
}

func (p *pulse) beat(ctx context.Context, nc *nats.Conn, subject string) {
	if _, err := nc.RequestWithContext(ctx, subject, nil); err != nil {
		return // it was not answered
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.longest, p.last = max(p.longest, now.Sub(p.last)), now
}

// stalled is the longest time between two answers, until now.
func (p *pulse) stalled() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.longest, time.Since(p.last))
}

// Stalled implements [sourcetest.Stalling].
func (h *harness) Stalled() time.Duration { return h.pulse.stalled() }
