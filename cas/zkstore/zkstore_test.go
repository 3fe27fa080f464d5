package zkstore_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/zkstore"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

// libsEnv is the directory of ZooKeeper's jars. `make stores` fetches them.
const libsEnv = "EPOCHFENCE_ZOOKEEPER_LIBS"

func start(t testing.TB) *servertest.Server {
	t.Helper()
	s := node(t, 1, "")
	await(t, s)
	return s
}

// node starts a server with this id, which has these lines in its configuration, too.
func node(t testing.TB, id int, lines string) *servertest.Server {
	t.Helper()
	java := servertest.Jars(t, libsEnv, "-Dzookeeper.forceSync=no", // a kill of the process loses nothing
		"-Dzookeeper.enforceQuota=true")
	return servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		config := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n%s", data(s), s.Port(), lines)
		file := filepath.Join(s.Dir, "zoo.cfg")
		if err := errors.Join(os.MkdirAll(data(s), 0o755), os.WriteFile(file, []byte(config), 0o600), os.WriteFile(filepath.Join(data(s), "myid"), fmt.Append(nil, id), 0o600)); err != nil {
			t.Fatal(err)
		}
		return java("org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	})
}

// await waits until the server serves, which is after it has begun to listen.
func await(t testing.TB, s *servertest.Server) {
	t.Helper()
	servertest.Await(t, "ZooKeeper serves", func() bool { return mode(s) != "" })
}

// mode returns what the server is among others, or "" if it does not serve.
func mode(s *servertest.Server) string {
	c, err := net.DialTimeout("tcp", s.Address, time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("srvr")); err != nil {
		return ""
	}
	said, _ := io.ReadAll(c)
	_, rest, _ := strings.Cut(string(said), "Mode: ")
	is, _, _ := strings.Cut(rest, "\n")
	return is
}

// nodes are three servers that are one ZooKeeper.
type nodes struct {
	servers []*servertest.Server
	links   [][]*proxy.Proxy // from each server to the others
}

func startNodes(t testing.TB) (n nodes) {
	t.Helper()
	ports, err := freeport.Take(6)
	if err != nil {
		t.Fatal(err)
	}
	for from := range 3 {
		lines, links := "initLimit=20\nsyncLimit=10\n", []*proxy.Proxy(nil)
		for to := range 3 {
			address := fmt.Sprint("127.0.0.1:", ports[2*to])
			if to != from {
				p, err := proxy.New(func() (string, bool) { return fmt.Sprint("127.0.0.1:", ports[2*to]), true })
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Close)
				address, links = p.Address(), append(links, p)
			}
			lines += fmt.Sprintf("server.%d=%s:%d\n", to+1, address, ports[2*to+1])
		}
		n.servers, n.links = append(n.servers, node(t, from+1, lines)), append(n.links, links)
	}
	for _, s := range n.servers {
		await(t, s)
	}
	return n
}

// which returns the number of a server that is a leader, or a follower, once there is one: a server may take
// long to say what it is.
func which(t testing.TB, servers []*servertest.Server, is string) (n int) {
	t.Helper()
	servertest.Await(t, "ZooKeeper has a "+is, func() bool {
		n = slices.IndexFunc(servers, func(s *servertest.Server) bool { return mode(s) == is })
		return n >= 0
	})
	return n
}

// lag lets a follower serve clients for a second in which it hears nothing from the leader.
func (n nodes) lag(t testing.TB) (lags func() bool) {
	follower := which(t, n.servers, "follower")
	for _, p := range n.links[follower] {
		p.Freeze()
		time.AfterFunc(time.Second, p.Pass)
	}
	over := time.Now().Add(time.Second)
	return func() bool { return time.Now().Before(over) }
}

// killLeader kills the leader, and starts it again once the others have another one.
func killLeader(t testing.TB, nodes []*servertest.Server) {
	t.Helper()
	n := which(t, nodes, "leader")
	nodes[n].Kill()
	which(t, nodes, "leader")
	nodes[n].Restart(t)
	await(t, nodes[n])
}

func TestRealOnThreeNodes(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		nodes := startNodes(t)
		var addresses []string
		for _, s := range nodes.servers {
			addresses = append(addresses, s.Address)
		}
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store { return open(t, connect(t, addresses...)) },
			Kill: func(t testing.TB) { killLeader(t, nodes.servers) },
			Lag:  nodes.lag,
		}
	}
	for what, kills := range map[string]func(*testing.T, func(testing.TB) castest.Rig){
		"items": castest.RunKilled, "leases": leasetest.RunKilled, "consumers": cassinktest.RunKilled,
	} {
		t.Run(what, func(t *testing.T) { t.Parallel(); kills(t, create) })
	}
}

func data(s *servertest.Server) string { return filepath.Join(s.Dir, "data") }

type silent struct{}

func (silent) Printf(string, ...any) {}

func connect(t testing.TB, addresses ...string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(addresses, 5*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func open(t testing.TB, c *zk.Conn) cas.Store {
	t.Helper()
	s, err := zkstore.Open(t.Context(), c, zkstore.Options{Root: "/app/items"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB) castest.Rig {
	s := start(t)
	replace := func(t testing.TB, by string) {
		s.Kill()
		if err := os.RemoveAll(data(s)); err != nil {
			t.Fatal(err)
		}
		if by != "" {
			if err := os.CopyFS(data(s), os.DirFS(by)); err != nil {
				t.Fatal(err)
			}
		}
		s.Restart(t)
		await(t, s)
	}
	return castest.Rig{
		Served:  true,
		Strands: true,
		Open:    func(t testing.TB, via func(string) string) cas.Store { return open(t, connect(t, via(s.Address))) },
		Empty:   func(t testing.TB) { replace(t, "") },
		Backup: func(t testing.TB) func() {
			saved := filepath.Join(s.Dir, "saved")
			s.Kill()
			if err := os.CopyFS(saved, os.DirFS(data(s))); err != nil {
				t.Fatal(err)
			}
			s.Restart(t)
			await(t, s)
			return func() { replace(t, saved) }
		},
		Foreign: map[string]func(testing.TB, string) []byte{
			"a node without children": func(t testing.TB, key string) []byte {
				path := "/app/items/" + strings.ReplaceAll(key, "/", "=2F")
				if _, err := connect(t, s.Address).Create(path, []byte("theirs"), 0, zk.WorldACL(zk.PermAll)); err != nil {
					t.Fatal(err)
				}
				return nil
			},
		},
		Full: func(t testing.TB) func() {
			c, quota := connect(t, s.Address), "/zookeeper/quota/app/items" // as setquota makes it
			for _, path := range []string{"/zookeeper/quota/app", quota, quota + "/zookeeper_limits", quota + "/zookeeper_stats"} {
				if _, err := c.Create(path, []byte("count=-1,bytes=-1,countHardLimit=-1,byteHardLimit=1"), 0, zk.WorldACL(zk.PermAll)); err != nil {
					t.Fatal(err)
				}
			}
			return func() {
				if err := c.Delete(quota+"/zookeeper_limits", -1); err != nil {
					t.Fatal(err)
				}
			}
		},
		Native: func(t testing.TB, key string) []byte {
			value, _, err := connect(t, s.Address).Get("/app/items/" + strings.ReplaceAll(key, "/", "=2F"))
			if err != nil {
				t.Fatal(err)
			}
			return value
		},
	}
}

func TestRealSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestRealLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestRealItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestRealConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestRealTheCommandReachesIt(t *testing.T) {
	s := start(t)
	commandtest.Reaches(t, open(t, connect(t, s.Address)), "zookeeper://"+s.Address+"/app/items")
}

func TestRealCommitRow(t *testing.T) { cassinktest.Measure(t, "ZooKeeper", rig) }

func TestRealLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "ZooKeeper",
		Number: "the zxid of the write: it grows, also over deletions; a restored backup repeats it",
		Needs:  "three servers",
	}, rig)
}

func TestARootThatIsNoPathIsRefused(t *testing.T) {
	for _, root := range []string{"items", "/items/", "/"} {
		if _, err := zkstore.Open(t.Context(), nil, zkstore.Options{Root: root}); err == nil || !strings.Contains(err.Error(), "Options.Root") {
			t.Errorf("%q: %v", root, err)
		}
	}
}
