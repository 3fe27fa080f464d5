package natstest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/internal/waits"
)

// account is the account of connections without credentials.
const account = "$G"

// Cluster is several servers that form a cluster. Proxies that can cut connections stand between
// the servers, and between each server and its clients. Its methods are not safe for concurrent
// use.
type Cluster struct {
	nodes   []*Server
	clients []*proxy.Proxy // to each node
	routes  []route
}

type route struct {
	from, to int
	*proxy.Proxy
}

// NewCluster starts a cluster whose data is below dir, which must exist, and returns once all nodes
// have joined. End it with Close.
func NewCluster(ctx context.Context, dir string, nodes int, configure ...Configure) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, dir, nodes, configure); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, dir string, nodes int, configure []Configure) error {
	for n := range nodes {
		name := fmt.Sprint("node", n)
		o := NodeOptions(name, filepath.Join(dir, name))
		o.Cluster = server.ClusterOpts{
			Name: "natstest", Host: "127.0.0.1", Port: anyPort, NoAdvertise: true,
			// Nodes must not learn addresses that bypass the proxies.
			Advertise: "127.0.0.1:1",
		}
		for _, f := range configure {
			f(o)
		}
		s := &Server{log: &tail{}, options: o}
		c.nodes = append(c.nodes, s)
		p, err := proxy.New(s.clientAddress)
		if err != nil {
			return err
		}
		c.clients = append(c.clients, p)
	}
	for from := range nodes {
		for to := range nodes {
			if from == to {
				continue
			}
			p, err := proxy.New(c.nodes[to].routeAddress)
			if err != nil {
				return err
			}
			c.routes = append(c.routes, route{from, to, p})
			o := c.nodes[from].options
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: p.Address()})
		}
	}
	for _, s := range c.nodes {
		if err := s.Start(); err != nil {
			return err
		}
	}
	return c.Await(ctx)
}

// Close stops everything.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range c.clients {
		p.Close()
	}
	for _, r := range c.routes {
		r.Close()
	}
	for _, s := range c.nodes {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// Nodes returns the servers. Clients that [Cluster.Cut] should cut off must connect to
// [Cluster.URLs] instead of the servers' URLs.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// URLs returns the URLs for clients, one for each node. They never change.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, p := range c.clients {
		urls = append(urls, "nats://"+p.Address())
	}
	return urls
}

// Stop stops a node.
func (c *Cluster) Stop(node int) error { return c.nodes[node].Stop() }

// Start starts a stopped node with its data.
func (c *Cluster) Start(node int) error { return c.nodes[node].Start() }

// Cut cuts a node off from the other nodes and from its clients.
func (c *Cluster) Cut(node int) {
	c.Isolate(node)
	c.clients[node].Cut()
}

// Isolate cuts a node off from the other nodes, but not from its clients.
func (c *Cluster) Isolate(node int) { c.eachRoute(node, (*proxy.Proxy).Cut) }

// Heal undoes [Cluster.Cut] and [Cluster.Isolate].
func (c *Cluster) Heal(node int) {
	c.eachRoute(node, (*proxy.Proxy).Pass)
	c.clients[node].Pass()
}

func (c *Cluster) eachRoute(node int, do func(*proxy.Proxy)) {
	for _, r := range c.routes {
		if r.from == node || r.to == node {
			do(r.Proxy)
		}
	}
}

// Await waits until every running node has joined the cluster and has the same state as the others.
func (c *Cluster) Await(ctx context.Context) error {
	if !waits.Until(ctx, 20*time.Millisecond, c.whole) {
		return fmt.Errorf("natstest: the cluster is not whole: %w\n%s", ctx.Err(), c.LogTail())
	}
	return nil
}

func (c *Cluster) whole() bool {
	leaders := 0
	for _, s := range c.nodes {
		ns := s.Embedded()
		if ns == nil {
			continue
		}
		if !ns.JetStreamIsCurrent() {
			return false
		}
		if ns.JetStreamIsLeader() {
			leaders++
			if len(ns.JetStreamClusterPeers()) < len(c.nodes) {
				return false
			}
		}
	}
	return leaders == 1
}

// AwaitStream waits until every running node has everything that the stream's leader has, and a log
// that is not empty. The vote of a node with an empty log does not count towards a majority
// (nats-server 2.15.2, raft.runAsCandidate). If such a node and another one are left of three, the
// stream has no leader until the third one is back.
func (c *Cluster) AwaitStream(ctx context.Context, stream string) error {
	lags := func(s *Server) bool {
		ns := s.Embedded()
		return ns != nil && !ns.JetStreamIsStreamCurrent(account, stream)
	}
	if !waits.Until(ctx, 20*time.Millisecond, func() bool { return !slices.ContainsFunc(c.nodes, lags) }) {
		return fmt.Errorf("natstest: not every node has stream %q: %w\n%s", stream, ctx.Err(), c.LogTail())
	}
	return nil
}

// Leader returns the first node that considers itself the leader of a stream, or -1. A node that
// was cut off may still do so.
func (c *Cluster) Leader(stream string) int {
	return slices.IndexFunc(c.nodes, func(s *Server) bool {
		ns := s.Embedded()
		return ns != nil && ns.JetStreamIsStreamLeader(account, stream)
	})
}

// StepDown makes the leader of a stream give up leadership to another node.
func (c *Cluster) StepDown(stream string) error {
	n := c.Leader(stream)
	if n < 0 {
		return fmt.Errorf("natstest: stream %q has no leader", stream)
	}
	ns := c.nodes[n].Embedded()
	if ns == nil {
		return fmt.Errorf("natstest: node %d is stopped", n)
	}
	return ns.JetStreamStepdownStream(account, stream)
}

// LogTail returns the last warnings and errors of each node.
func (c *Cluster) LogTail() string {
	var b strings.Builder
	for n, s := range c.nodes {
		fmt.Fprintf(&b, "node %d:\n%s\n", n, s.LogTail())
	}
	return b.String()
}

func (s *Server) routeAddress() (string, bool) {
	ns := s.Embedded()
	if ns == nil || ns.ClusterAddr() == nil {
		return "", false
	}
	return ns.ClusterAddr().String(), true
}

func (s *Server) clientAddress() (string, bool) {
	ns := s.Embedded()
	if ns == nil || ns.Addr() == nil {
		return "", false
	}
	return ns.Addr().String(), true
}
