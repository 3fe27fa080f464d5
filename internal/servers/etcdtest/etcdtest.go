// Package etcdtest runs a real etcd in the test's process. It is a module of its own, so that the
// server stays out of go.sum of those who use etcdstore.
package etcdtest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/epochfence/epochfence/internal/servers/freeport"
)

// startLimit is how long a server may take until it serves.
const startLimit = time.Minute

// Server is one etcd. Its methods are not safe for concurrent use.
type Server struct {
	Address string // host:port of clients

	peer string
	dir  string
	etcd *embed.Etcd
}

// Start starts a server, which ends with t.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("a server is not for -short")
	}
	s := newServer(t)
	t.Cleanup(s.Stop)
	s.run(t, "data")
	return s
}

func newServer(t testing.TB) *Server {
	t.Helper()
	ports, err := freeport.Take(2)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Address: fmt.Sprintf("127.0.0.1:%d", ports[0]), peer: fmt.Sprintf("127.0.0.1:%d", ports[1]), dir: t.TempDir()}
}

// Stop stops the server.
func (s *Server) Stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

// Empty replaces the server by an empty one at the same address.
func (s *Server) Empty(t testing.TB) {
	t.Helper()
	s.Stop()
	s.run(t, fmt.Sprintf("data-%d", time.Now().UnixNano()))
}

// Backup copies the data. The function that it returns puts the copy in the place of the data.
func (s *Server) Backup(t testing.TB) (restore func()) {
	t.Helper()
	data := s.etcd.Config().Dir
	saved := filepath.Join(s.dir, "saved")
	s.Stop() // what a stopped server leaves on its disk is a consistent copy
	if err := os.CopyFS(saved, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	s.run(t, filepath.Base(data))
	return func() {
		s.Stop()
		s.run(t, "saved")
	}
}

func (s *Server) run(t testing.TB, data string) {
	t.Helper()
	s.etcd = begin(t, s.config(data, "default=http://"+s.peer))
	await(t, s.etcd)
}

func (s *Server) config(data, cluster string) *embed.Config {
	c := embed.NewConfig()
	c.Dir = filepath.Join(s.dir, data)
	c.LogLevel, c.LogOutputs = "error", []string{filepath.Join(s.dir, "log")}
	client, peer := httpURL(s.Address), httpURL(s.peer)
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = cluster
	return c
}

func httpURL(host string) url.URL { return url.URL{Scheme: "http", Host: host} }

func begin(t testing.TB, c *embed.Config) *embed.Etcd {
	t.Helper()
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func await(t testing.TB, e *embed.Etcd) {
	t.Helper()
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(startLimit):
		t.Fatalf("etcd is not ready after %v", startLimit)
	}
}

// Client returns a client of the servers at addresses, which closes when t ends.
func Client(t testing.TB, addresses ...string) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, "http://"+a)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: startLimit, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Cluster is several servers that are one etcd. Its methods are not safe for concurrent use.
type Cluster struct {
	servers []*Server
	configs []*embed.Config
}

// StartCluster starts servers, which end with t.
func StartCluster(t testing.TB, servers int) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a server is not for -short")
	}
	c := &Cluster{}
	var all []string
	for n := range servers {
		s := newServer(t)
		c.servers = append(c.servers, s)
		all = append(all, fmt.Sprintf("node%d=http://%s", n, s.peer))
	}
	for n, s := range c.servers {
		config := s.config("data", strings.Join(all, ","))
		config.Name = fmt.Sprintf("node%d", n)
		c.configs = append(c.configs, config)
		t.Cleanup(s.Stop)
		s.etcd = begin(t, config)
	}
	for _, s := range c.servers {
		await(t, s.etcd)
	}
	return c
}

// Addresses returns the addresses of the servers.
func (c *Cluster) Addresses() []string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.Address)
	}
	return all
}

// KillLeader stops the leader without a word to the others, and starts it again.
func (c *Cluster) KillLeader(t testing.TB) {
	t.Helper()
	for n, s := range c.servers {
		if s.etcd.Server.Leader() != s.etcd.Server.MemberID() {
			continue
		}
		s.etcd.Server.HardStop()
		s.Stop()
		config := *c.configs[n]
		config.ClusterState = embed.ClusterStateFlagExisting
		s.etcd = begin(t, &config)
		await(t, s.etcd)
		return
	}
	t.Fatal("etcd has no leader")
}
