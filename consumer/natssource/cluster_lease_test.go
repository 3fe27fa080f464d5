package natssource

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
)

func TestOnAClusterLeasesOutliveStepDownsAndRestarts(t *testing.T) {
	t.Parallel()
	r, c := newClusterRig(t, 8, 40*time.Second)
	a, b := r.start("a"), r.start("b")
	r.shared([]*testMember{a, b}, 4, 4)
	grants := r.granted()
	confirmed := func(what string) {
		for _, m := range []*testMember{a, b} {
			for _, g := range m.holding() {
				eventually(t, what+": the lease is confirmed", func() bool {
					_, err := g.Confirm(inASecond(t), g.fence(1))
					if errors.Is(err, consumer.ErrLost) {
						t.Fatalf("%s: %v", what, err)
					}
					return err == nil
				})
			}
		}
	}
	for range 4 {
		eventually(t, "the leader of the bucket steps down", func() bool { return c.StepDown("KV_leases") == nil })
		confirmed("after a step-down")
	}
	for n := range c.Nodes() {
		must(t, c.Stop(n))
		confirmed("without a node")
		must(t, c.Start(n))
		must(t, c.Await(inTime(t)))
	}
	confirmed("in the end")
	if now := r.granted(); now != grants || len(a.holding()) != 4 || len(b.holding()) != 4 {
		t.Errorf("%d and %d held, after %d more grants", len(a.holding()), len(b.holding()), now-grants)
	}
}

// Two of three nodes can lead JetStream, but cannot keep a bucket three times.
func TestABucketThatTooFewServersAreThereForIsWaitedFor(t *testing.T) {
	t.Parallel()
	long(t)
	r, c := newClusterRig(t, 1, time.Second)
	must(t, c.AwaitStream(inTime(t), "orders")) // or two of them elect nobody
	for n := range c.Nodes() {
		must(t, c.Stop(n))
	}
	must(t, c.Start(0))
	must(t, c.Start(1))
	insist(t, func(ctx context.Context) error { return second(r.js.Stream(ctx, "orders")) })

	o := r.options()
	o.StartTimeout = 15 * time.Second // an election may come first
	s, err := New(o)
	must(t, err)
	err = s.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
	if err == nil || !jsapi.HasCode(err, jsapi.CodeNoPeers) || !strings.Contains(err.Error(), `open bucket "leases"`) || !strings.Contains(err.Error(), "as many NATS servers") {
		t.Errorf("Run: %v", err)
	}

	said := make(lines, 100)
	o.StartTimeout, o.Logger = time.Minute, slog.New(slog.NewTextHandler(said, nil))
	s, err = New(o)
	must(t, err)
	ctx, stop := context.WithCancel(inTime(t))
	granted, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
			granted <- struct{}{}
			select {
			case <-tn.Draining():
			case <-ctx.Done():
			}
		})
	}()
	for line := ""; !strings.Contains(line, "no suitable peers"); { // an election is said, too
		select {
		case line = <-said:
		case err := <-ended:
			t.Fatalf("Run: %v", err)
		case <-time.After(patience):
			t.Fatalf("it does not say what it waits for, at last: %s", line)
		}
	}
	must(t, c.Start(2))
	select {
	case <-granted:
	case err := <-ended:
		t.Fatalf("Run: %v", err)
	}
	stop()
	must(t, <-ended)
}
