package etcdtest

import (
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
)

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
