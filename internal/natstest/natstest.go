package natstest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// reconnectWait is short: it is a wait on loopback.
const reconnectWait = 50 * time.Millisecond

// Start starts a server for t alone, and ends it with t. If t has failed by
// then, the tail of the server's log is added to its output.
func Start(t testing.TB, configure ...Configure) *Server {
	t.Helper()
	notInShort(t)
	s, err := New(t.TempDir(), configure...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log ends with\n%s", s.LogTail())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Connect returns a connection that is closed when t ends. It reconnects for
// as long as it takes.
func (s *Server) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s.URL(), options)
}

// JetStream is [Server.Connect] with the JetStream of the connection.
func (s *Server) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Connect(t, options...))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// StartCluster starts a cluster for t alone, and ends it with t. If t has failed
// by then, the tails of the nodes' logs are added to its output.
func StartCluster(t testing.TB, nodes int, configure ...Configure) *Cluster {
	t.Helper()
	notInShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*startLimit)
	defer cancel()
	c, err := NewCluster(ctx, t.TempDir(), nodes, configure...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the servers' logs end with\n%s", c.LogTail())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Connect returns a connection to any node, that goes to another when its own
// is gone, and is closed when t ends.
func (c *Cluster) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, strings.Join(c.URLs(), ","), options)
}

// ConnectTo returns a connection to one node only.
func (c *Cluster) ConnectTo(t testing.TB, node int, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, c.URLs()[node], options)
}

// JetStream is [Cluster.Connect] with the JetStream of the connection.
func (c *Cluster) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(c.Connect(t, options...))
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

// notInShort skips tests of nats-server under go test -short, which is for what
// needs no server.
func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: nats-server is not started")
	}
}
