package zkstore_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/zkstore"
	"github.com/epochfence/epochfence/guard/guardtest"
	"github.com/epochfence/epochfence/internal/commandtest"
	"github.com/epochfence/epochfence/internal/servertest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

// libsEnv is the directory of ZooKeeper's jars. `make stores` fetches them.
const libsEnv = "EPOCHFENCE_ZOOKEEPER_LIBS"

func start(t testing.TB) *servertest.Server {
	t.Helper()
	java := servertest.Jars(t, libsEnv, "-Dzookeeper.forceSync=no") // a kill of the process loses nothing
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		config := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n", data(s), s.Port())
		file := filepath.Join(s.Dir, "zoo.cfg")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return java("org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	})
	await(t, s)
	return s
}

// await waits until the server serves, which is after it has begun to listen.
func await(t testing.TB, s *servertest.Server) {
	t.Helper()
	servertest.Await(t, "ZooKeeper serves", func() bool {
		c, err := net.DialTimeout("tcp", s.Address, time.Second)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("srvr")); err != nil {
			return false
		}
		said, _ := io.ReadAll(c)
		return strings.Contains(string(said), "Mode: standalone")
	})
}

func data(s *servertest.Server) string { return filepath.Join(s.Dir, "data") }

type silent struct{}

func (silent) Printf(string, ...any) {}

func connect(t testing.TB, address string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect([]string{address}, 5*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
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
		Native: func(t testing.TB, key string) []byte {
			value, _, err := connect(t, s.Address).Get("/app/items/" + strings.ReplaceAll(key, "/", "=2F"))
			if err != nil {
				t.Fatal(err)
			}
			return value
		},
	}
}

func TestRealSuite(t *testing.T) { castest.Run(t, rig) }

func TestRealLeases(t *testing.T) { leasetest.Run(t, rig) }

func TestRealItems(t *testing.T) { guardtest.Run(t, rig) }

func TestRealConsumers(t *testing.T) { cassinktest.Run(t, rig) }

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

func TestRealANodeOfAnotherProgramIsRefused(t *testing.T) {
	c := connect(t, start(t).Address)
	s := open(t, c)
	if _, err := c.Create("/app/items/orders", []byte("x"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if item, err := s.Get(t.Context(), "orders"); err == nil || !strings.Contains(err.Error(), "not written by this store") {
		t.Errorf("%+v, %v", item, err)
	}
	if _, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil); err == nil {
		t.Error("it was overwritten as if it were absent")
	}
	for item, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", item, err)
	}
}

func TestARootThatIsNoPathIsRefused(t *testing.T) {
	for _, root := range []string{"items", "/items/", "/"} {
		if _, err := zkstore.Open(t.Context(), nil, zkstore.Options{Root: root}); err == nil || !strings.Contains(err.Error(), "Options.Root") {
			t.Errorf("%q: %v", root, err)
		}
	}
}
