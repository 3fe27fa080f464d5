package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The nodes are this test binary.
func TestMain(m *testing.M) {
	if config := os.Getenv(nodeVariable); config != "" {
		fail(serveNode(config))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWhatIsAcknowledgedSurvivesEachNodeBeingKilledInTurn(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := newCluster(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	conn, err := nats.Connect(strings.Join(c.urls(), ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: nodes})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range c.nodes {
		insist(ctx, t, func(ctx context.Context) error {
			_, err := js.Publish(ctx, "s", nil, jetstream.WithMsgID(n.Name))
			return err
		})
		if err := c.bounce(ctx, n, 0); err != nil {
			t.Fatal(err)
		}
		var info *jetstream.StreamInfo
		insist(ctx, t, func(ctx context.Context) (err error) {
			info, err = stream.Info(ctx)
			if err == nil && (info.Cluster == nil || info.Cluster.Leader == "") {
				err = errors.New("the answer is of a node that knows no leader, and may lack messages")
			}
			return err
		})
		if info.State.Msgs != uint64(i+1) || info.Config.Replicas != nodes {
			t.Errorf("after %s was killed the stream holds %d messages in %d replicas, want %d in %d", n.Name, info.State.Msgs, info.Config.Replicas, i+1, nodes)
		}
	}
	c.stop()
	for _, n := range c.nodes {
		if _, err := n.health(ctx); err == nil {
			t.Errorf("%s still answers", n.Name)
		}
	}
}

// insist asks until there is an answer: for a moment nobody may lead the stream.
func insist(ctx context.Context, t *testing.T, ask func(context.Context) error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := ask(short)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
}

func TestANodeEndsWithItsParent(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := newCluster(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	n := c.nodes[0]
	_ = n.stdin.Close() // as the kernel does when the parent is gone
	select {
	case <-n.exited:
	case <-ctx.Done():
		t.Error("the node lives on")
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"-kill-every", "-1s", "true"}, {"-down", "-1s", "true"}, {"-kill-every", "1m"}} {
		var exit *exec.ExitError
		if err := run(t.Context(), args); err == nil || errors.As(err, &exit) || !strings.Contains(err.Error(), "usage:") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
