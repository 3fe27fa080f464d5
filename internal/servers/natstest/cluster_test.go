package natstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestAClusterGoesOnWithoutTheNodeThatLed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := StartCluster(t, 3)
	js := c.JetStream(t)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	publish := func() {
		t.Helper()
		for {
			once, cancel := context.WithTimeout(ctx, time.Second)
			_, err := js.Publish(once, "s", nil)
			cancel()
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	publish()
	if err := c.AwaitStream(ctx, "S"); err != nil {
		t.Fatal(err)
	}
	leader := awaitLeader(ctx, t, c, -1)
	c.Cut(leader)
	publish()
	awaitLeader(ctx, t, c, leader)
	c.Heal(leader)
	if err := c.Await(ctx); err != nil {
		t.Fatal(err)
	}
	stopped := awaitLeader(ctx, t, c, -1)
	if err := c.Stop(stopped); err != nil {
		t.Fatal(err)
	}
	publish()
	if err := c.Start(stopped); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(ctx); err != nil {
		t.Fatal(err)
	}
	publish()
}

// awaitLeader waits until a node other than that one leads.
func awaitLeader(ctx context.Context, t *testing.T, c *Cluster, other int) int {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for n, s := range c.Nodes() {
			if ns := s.Embedded(); n != other && ns != nil && ns.JetStreamIsStreamLeader(account, "S") {
				return n
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal("no other node leads")
		case <-tick.C:
		}
	}
}
