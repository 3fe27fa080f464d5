package natstest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// reconnectWait is short because the server is on loopback.
const reconnectWait = 50 * time.Millisecond

// Start starts a server for t alone, and ends it with t. If t has failed by then, Start adds the
// end of the server's log to t's output.
func Start(t testing.TB, configure ...Configure) *Server {
	t.Helper()
	notInShort(t)
	s, err := New(t.TempDir(), configure...)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, s.LogTail, s.Stop)
	return s
}

// Connect returns a connection that closes when t ends. It reconnects without a limit.
func (s *Server) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s.URL(), options)
}

// JetStream returns the JetStream of a new connection, as [Server.Connect] makes it.
func (s *Server) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return stream(t, s.Connect(t, options...))
}

// StartCluster starts a cluster for t alone, and ends it with t. If t has failed by then,
// StartCluster adds the ends of the nodes' logs to t's output.
func StartCluster(t testing.TB, nodes int, configure ...Configure) *Cluster {
	t.Helper()
	notInShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*startLimit)
	defer cancel()
	c, err := NewCluster(ctx, t.TempDir(), nodes, configure...)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, c.LogTail, c.Close)
	return c
}

// Connect returns a connection to any node, which closes when t ends. It reconnects to another node
// if its own ends.
func (c *Cluster) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, strings.Join(c.URLs(), ","), options)
}

// ConnectTo returns a connection to one node only.
func (c *Cluster) ConnectTo(t testing.TB, node int, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, c.URLs()[node], options)
}

// JetStream returns the JetStream of a new connection, as [Cluster.Connect] makes it.
func (c *Cluster) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return stream(t, c.Connect(t, options...))
}

func ends(t testing.TB, logTail func() string, stop func() error) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the servers' logs end with\n%s", logTail())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func stream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func connect(t testing.TB, urls string, options []nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(urls, append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers(),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: nats-server is not started")
	}
}
