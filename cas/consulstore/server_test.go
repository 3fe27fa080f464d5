package consulstore_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// serverEnv is the path of consul. `make stores` fetches Consul 1.8.7, which Debian 11 has. These
// tests have passed with 1.14.11 too. Versions from 1.17 have no open-source licence.
const serverEnv = "EPOCHFENCE_TEST_CONSUL"

// cluster is the address on which servers talk to each other. The ports of 127.0.0.1 are not free:
// package freeport marks them with UDP, which Consul also uses.
const cluster = "127.0.0.2"

func program(t testing.TB) string {
	t.Helper()
	if p := os.Getenv(serverEnv); p != "" {
		return p
	}
	return servertest.Find(t, "make stores fetches it", "consul")
}

// ports are those that an agent has beside that of s.Address.
func ports(t testing.TB) (server, serf int) {
	t.Helper()
	p, err := freeport.Take(2)
	if err != nil {
		t.Fatal(err)
	}
	return p[0], p[1]
}

// agent starts an agent of Consul, which ends with t.
func agent(t testing.TB, server, serf int, args ...string) *servertest.Server {
	t.Helper()
	consul := program(t)
	all := append([]string{
		"agent", "-client", "127.0.0.1", "-bind", cluster, "-server-port", strconv.Itoa(server), "-serf-lan-port", strconv.Itoa(serf),
		"-serf-wan-port", "-1", "-dns-port", "-1", "-grpc-port", "-1", "-log-level", "warn", "-node", fmt.Sprint("node", serf),
		"-hcl", "connect { enabled = false }",
	}, args...)
	if help, _ := exec.Command(consul, "agent", "-help").CombinedOutput(); strings.Contains(string(help), "-grpc-tls-port") {
		all = append(all, "-grpc-tls-port", "-1") // Consul 1.14 and newer
	}
	return servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(consul, append(all, "-http-port", s.Port())...)
	})
}

// start starts a server that keeps what it has in memory, so that a restart empties it.
func start(t testing.TB, args ...string) *servertest.Server {
	t.Helper()
	server, serf := ports(t)
	s := agent(t, server, serf, append([]string{"-dev"}, args...)...)
	awaitLeader(t, s)
	return s
}

// awaitLeader waits for a leader that has begun to lead: before, it refuses snapshots.
func awaitLeader(t testing.TB, s *servertest.Server) (leader string) {
	t.Helper()
	c := connect(t, s.Address, "")
	servertest.Await(t, "Consul has a leader", func() bool {
		leader, _ = c.Status().Leader()
		_, _, err := c.Catalog().Nodes(&api.QueryOptions{RequireConsistent: true})
		return leader != "" && err == nil
	})
	return leader
}

func connect(t testing.TB, address, token string) *api.Client {
	t.Helper()
	config := api.DefaultConfig()
	config.Address, config.Token = address, token
	config.Transport.MaxConnsPerHost = 100 // a server closes those beyond 200
	c, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(config.Transport.CloseIdleConnections)
	return c
}

// nodes are servers that are one cluster.
type nodes struct {
	servers map[string]*servertest.Server // by the address at which the others know them
	client  *servertest.Server            // an agent that is no server
}

func startNodes(t testing.TB, count int) *nodes {
	t.Helper()
	n := &nodes{servers: map[string]*servertest.Server{}}
	var join []string
	type pair struct{ server, serf int }
	all := make([]pair, count+1)
	for i := range all {
		all[i].server, all[i].serf = ports(t)
		join = append(join, "-retry-join", fmt.Sprintf("%s:%d", cluster, all[i].serf))
	}
	join = append(join, "-retry-interval", "1s")
	for _, p := range all[:count] {
		args := append([]string{
			"-server", "-bootstrap-expect", strconv.Itoa(count), "-data-dir", filepath.Join(t.TempDir(), "data"),
			"-hcl", "performance { raft_multiplier = 1 }",
		}, join...)
		n.servers[fmt.Sprintf("%s:%d", cluster, p.server)] = agent(t, p.server, p.serf, args...)
	}
	last := all[count]
	n.client = agent(t, last.server, last.serf, append([]string{"-data-dir", filepath.Join(t.TempDir(), "data")}, join...)...)
	for _, s := range n.servers {
		awaitLeader(t, s)
	}
	awaitLeader(t, n.client)
	return n
}

// addresses are of all servers, and of the agent that is none.
func (n *nodes) addresses() []string {
	all := []string{n.client.Address}
	for _, s := range n.servers {
		all = append(all, s.Address)
	}
	return all
}

// killLeader kills the leader, and starts it again once the others have another one.
func (n *nodes) killLeader(t testing.TB) {
	t.Helper()
	old := awaitLeader(t, n.client)
	s := n.servers[old]
	if s == nil {
		t.Fatalf("the leader %s is none of the servers", old)
	}
	s.Kill()
	c := connect(t, n.client.Address, "")
	servertest.Await(t, "Consul has another leader", func() bool {
		leader, err := c.Status().Leader()
		return err == nil && leader != "" && leader != old
	})
	s.Restart(t)
	awaitLeader(t, s)
}
