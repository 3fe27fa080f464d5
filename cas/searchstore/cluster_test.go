package searchstore_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// TestRealCluster has a cluster manager, to which the clients connect, and four nodes with the data.
// The node with the primary shard is killed.
func TestRealCluster(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("five servers take minutes to start; make long WHAT=search-cluster runs it")
	}
	java := servertest.Jars(t, libsEnv)
	program, err := filepath.Abs("testdata/Server.java")
	if err != nil {
		t.Fatal(err)
	}
	transports, err := freeport.Take(5)
	if err != nil {
		t.Fatal(err)
	}
	nodes := make([]*server, 5)
	for n, role := range []string{"cluster_manager", "data", "data", "data", "data"} {
		nodes[n] = &server{Server: servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
			return java(program, "path.home="+s.Dir, "network.host=127.0.0.1", "http.port="+s.Port(),
				fmt.Sprint("transport.port=", transports[n]), fmt.Sprint("discovery.seed_hosts=127.0.0.1:", transports[0]),
				fmt.Sprint("node.name=n", n), "node.roles="+role, "cluster.initial_cluster_manager_nodes=n0",
				"cluster.routing.allocation.disk.threshold_enabled=false")
		})}
	}
	s := nodes[0]
	starting := make([]sync.WaitGroup, len(nodes))
	defer func() {
		for n := range starting {
			starting[n].Wait()
		}
	}()
	s.healthy(t, "?wait_for_nodes=5")
	castest.RunKilled(t, func(t testing.TB) castest.Rig {
		alias := s.alias(t)
		s.ask(t, "PUT", "/"+alias+"/_settings", `{"index.number_of_replicas":3}`, nil)
		s.healthy(t, alias+"?wait_for_status=green")
		return castest.Rig{
			Served: true,
			Open: func(t testing.TB, via func(string) string) cas.Store {
				return open(t, client(t, via(s.Address)), alias)
			},
			Kill: func(t testing.TB) {
				s.healthy(t, alias+"?wait_for_active_shards=2")
				primary := s.primary(t, alias)
				n := primary[1] - '0'
				starting[n].Wait()
				nodes[n].Kill()
				servertest.Await(t, "another node has the primary shard", func() bool {
					now := s.primary(t, alias)
					return now != "" && now != primary
				})
				starting[n].Go(func() { nodes[n].Restart(t) })
			},
		}
	})
}

// healthy waits until the cluster is.
func (s *server) healthy(t testing.TB, as string) {
	t.Helper()
	servertest.Await(t, "the cluster is healthy: "+as, func() bool {
		r, err := http.Get("http://" + s.Address + "/_cluster/health/" + as + "&timeout=1s")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// primary returns the name of the node with the primary shard, or "".
func (s *server) primary(t testing.TB, alias string) string {
	t.Helper()
	var shards []struct{ Prirep, State, Node string }
	s.ask(t, "GET", "/_cat/shards/"+alias+"?format=json", "", &shards)
	for _, shard := range shards {
		if shard.Prirep == "p" && shard.State == "STARTED" {
			return strings.Fields(shard.Node)[0]
		}
	}
	return ""
}
