package batches_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// The histories of this file kill servers: alone, and one of three.

const (
	serverDir  = "OUTBOX_TEST_NATS_SERVER"
	serverPort = "OUTBOX_TEST_NATS_PORT"
)

// Histories mostly wait for servers. The command line goes before this.
func TestMain(m *testing.M) {
	if dir := os.Getenv(serverDir); dir != "" {
		serve(dir)
	}
	_ = flag.Set("test.parallel", "8")
	os.Exit(kafkatest.Main(m))
}

// serve is a server in a process of its own, which ends with its standard input.
func serve(dir string) {
	port, err := strconv.Atoi(os.Getenv(serverPort))
	if err == nil {
		_, err = natstest.New(dir, func(o *server.Options) { o.Port = port })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	bufio.NewScanner(os.Stdin).Scan()
	os.Exit(0)
}

// A server that is killed has stored all messages of a batch or none, and says so when it is back.
func TestAServerIsKilledInTheCommit(t *testing.T) {
	t.Parallel()
	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	dir, url := t.TempDir(), "nats://127.0.0.1:"+strconv.Itoa(ports[0])
	start := func() *servertest.Self {
		s := servertest.StartSelf(t, serverDir+"="+dir, serverPort+"="+strconv.Itoa(ports[0]))
		if line := <-s.Lines; line != "ready" {
			t.Fatalf("the server said %q", line)
		}
		return s
	}
	s := start()
	r := newNATSRig(t, url)
	r.o.Batch = 200
	onItsWay := make(chan struct{}, 1) // a commit, while the server is killed
	var commits atomic.Int64
	r.takeOver(&process{at: func(step int) {
		if step == natsCommit && commits.Add(1) == 2 {
			onItsWay <- struct{}{}
		}
	}})
	const kills = 6
	for range kills {
		commits.Store(0)
		for range 400 {
			r.add("a", "b")
		}
		select {
		case <-onItsWay:
		case <-time.After(patience):
			t.Fatal("no commit")
		}
		s.Kill()
		s = start()
		r.awaitSent()
	}
	r.awaitEmpty()
	r.wantAll()
}

func TestClusterLosesItsLeaderWhileARelaySends(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	r := newNATSRig(t, strings.Join(c.URLs(), ","), func(c *jetstream.StreamConfig) { c.Replicas = 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	if err := c.AwaitStream(ctx, r.o.Stream); err != nil {
		t.Fatal(err)
	}
	r.o.Batch = 20
	var commits atomic.Int64
	run := r.takeOver(&process{at: func(step int) {
		if step == natsCommit {
			commits.Add(1)
		}
	}})
	some := func() {
		t.Helper()
		before := commits.Load()
		for range 100 {
			r.add("a", "b")
		}
		r.await("two batches", func() bool { return commits.Load() > before+1 })
	}
	for round := range 4 {
		some()
		leader := c.Leader(r.o.Stream)
		switch {
		case leader < 0:
		case round%2 == 0:
			if err := c.StepDown(r.o.Stream); err != nil {
				t.Log(err) // there is none at the moment
			}
		default:
			if err := c.Stop(leader); err != nil {
				t.Fatal(err)
			}
			some()
			if err := c.Start(leader); err != nil {
				t.Fatal(err)
			}
		}
		if round == 2 { // the owner changes, too, and the one before does not hear of it
			run = r.takeOver(run.of)
		}
		if err := c.AwaitStream(ctx, r.o.Stream); err != nil {
			t.Fatal(err)
		}
	}
	r.awaitEmpty()
	r.wantAll()
}
