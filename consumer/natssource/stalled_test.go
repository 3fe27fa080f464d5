package natssource

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/suites/pulsetest"
)

// startPulse writes to a stream of its own until the test ends.
func startPulse(t testing.TB, js jetstream.JetStream, name string, replicas int) *pulsetest.Pulse {
	insist(t, func(ctx context.Context) error {
		return second(js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Replicas: replicas, MaxMsgs: 1,
		}))
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = js.DeleteStream(ctx, name)
	})
	return pulsetest.Start(t, func(ctx context.Context) error {
		return second(js.Conn().RequestWithContext(ctx, name, nil))
	})
}

// Stalled implements [sourcetest.Stalling].
func (h *harness) Stalled() time.Duration { return h.pulse.Stalled() }

// pulse asks the servers of a group, without a bucket of its own.
func (r *groupRig) pulse() *pulsetest.Pulse {
	return pulsetest.Start(r.t, func(ctx context.Context) error { return second(r.js.AccountInfo(ctx)) })
}
