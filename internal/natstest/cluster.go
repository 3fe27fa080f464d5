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
)

// account is the one that connections without credentials are in.
const account = "$G"

// Cluster is some servers that form one, each in front of the others and of its
// clients behind a connection that can be cut. Its methods are for one
// goroutine at a time.
type Cluster struct {
	nodes   []*Server
	clients []*proxy // to each node
	routes  []route
}

// route is the connection of two nodes.
type route struct {
	from, to int
	*proxy
}

// NewCluster starts a cluster whose data is below dir, which must exist, and
// returns once all nodes are part of it. It ends with Close.
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
			// Nodes must not learn how to reach each other past the proxies.
			Advertise: "127.0.0.1:1",
		}
		for _, f := range configure {
			f(o)
		}
		s := &Server{log: &tail{}, options: o}
		c.nodes = append(c.nodes, s)
		p, err := newProxy(s.clientAddress)
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
			p, err := newProxy(c.nodes[to].routeAddress)
			if err != nil {
				return err
			}
			c.routes = append(c.routes, route{from, to, p})
			o := c.nodes[from].options
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: p.address()})
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
		p.close()
	}
	for _, r := range c.routes {
		r.close()
	}
	for _, s := range c.nodes {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// Nodes are the servers. Clients that are to be cut off with them connect to
// [Cluster.URLs] instead of theirs.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// URLs are where clients connect: one for each node. They stay the same.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, p := range c.clients {
		urls = append(urls, "nats://"+p.address())
	}
	return urls
}

// Stop stops a node, and Start starts it again.
func (c *Cluster) Stop(node int) error { return c.nodes[node].Stop() }

// Start starts a node that was stopped, with its data.
func (c *Cluster) Start(node int) error { return c.nodes[node].Start() }

// Cut cuts a node off from the others and from its clients.
func (c *Cluster) Cut(node int) {
	c.Isolate(node)
	c.clients[node].set(true)
}

// Isolate cuts a node off from the others. Its clients stay with it.
func (c *Cluster) Isolate(node int) { c.setRoutes(node, true) }

// Heal undoes [Cluster.Cut] and [Cluster.Isolate].
func (c *Cluster) Heal(node int) {
	c.setRoutes(node, false)
	c.clients[node].set(false)
}

func (c *Cluster) setRoutes(node int, cut bool) {
	for _, r := range c.routes {
		if r.from == node || r.to == node {
			r.set(cut)
		}
	}
}

// Await waits until every node that is not stopped is part of the cluster and
// knows what the others know.
func (c *Cluster) Await(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !c.whole() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("natstest: the cluster is not whole: %w\n%s", ctx.Err(), c.LogTail())
		case <-tick.C:
		}
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

// AwaitStream waits until every node that is not stopped has what the stream's leader
// has, at least something. The vote of a node that has nothing does not count towards a
// majority (nats-server 2.15.2, raft.runAsCandidate): where such a one and another are
// left of three, nobody leads the stream until the third one is back.
func (c *Cluster) AwaitStream(ctx context.Context, stream string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	lags := func(s *Server) bool {
		ns := s.Embedded()
		return ns != nil && !ns.JetStreamIsStreamCurrent(account, stream)
	}
	for slices.ContainsFunc(c.nodes, lags) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("natstest: not every node has stream %q: %w\n%s", stream, ctx.Err(), c.LogTail())
		case <-tick.C:
		}
	}
	return nil
}

// Leader returns the node that leads a stream, -1 if none does. The one that
// was cut off last may still think that it does, and is not asked.
func (c *Cluster) Leader(stream string) int {
	return slices.IndexFunc(c.nodes, func(s *Server) bool {
		ns := s.Embedded()
		return ns != nil && ns.JetStreamIsStreamLeader(account, stream)
	})
}

// StepDown makes the leader of a stream leave that to another node.
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

// LogTail is the end of what each node has logged: warnings and errors.
func (c *Cluster) LogTail() string {
	var b strings.Builder
	for n, s := range c.nodes {
		fmt.Fprintf(&b, "node %d:\n%s\n", n, s.LogTail())
	}
	return b.String()
}

// routeAddress is where other nodes connect.
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
