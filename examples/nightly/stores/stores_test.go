package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/etcdtest"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The pods are this test binary.
func TestMain(m *testing.M) {
	show.Enter(theShow().Work)
	os.Exit(m.Run())
}

func TestRealWithLeasesInRedisTheFencedIndexIsExact(t *testing.T) {
	program := servertest.Find(t, "Debian package redis-server", "redis-server", "valkey-server")
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(program, "--bind", "127.0.0.1", "--port", s.Port(), "--appendonly", "yes", "--save", "")
	})
	playsExact(t, "redis://"+s.Address+"/0")
}

func TestRealWithLeasesInEtcdTheFencedIndexIsExact(t *testing.T) {
	playsExact(t, "etcd://"+etcdtest.Start(t).Address)
}

func TestRealWithLeasesInConsulTheFencedIndexIsExact(t *testing.T) {
	program := os.Getenv("EPOCHFENCE_TEST_CONSUL")
	if program == "" {
		program = servertest.Find(t, "make stores unpacks it", "consul")
	}
	ports, err := freeport.Take(2)
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(program, "agent", "-dev", "-client", "127.0.0.1", "-bind", "127.0.0.2", // package freeport marks the ports of 127.0.0.1 with UDP
			"-server-port", strconv.Itoa(ports[0]), "-serf-lan-port", strconv.Itoa(ports[1]), "-serf-wan-port", "-1",
			"-dns-port", "-1", "-grpc-port", "-1", "-log-level", "warn", "-http-port", s.Port())
	})
	servertest.Await(t, "Consul has a leader", func() bool {
		answer, err := http.Get("http://" + s.Address + "/v1/kv/?consistent&keys")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusNotFound
	})
	playsExact(t, "consul://"+s.Address)
}

func TestRealWithLeasesInZooKeeperTheFencedIndexIsExact(t *testing.T) {
	java := servertest.Jars(t, "EPOCHFENCE_ZOOKEEPER_LIBS")
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		data := filepath.Join(s.Dir, "data")
		file := filepath.Join(s.Dir, "zoo.cfg")
		config := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n", data, s.Port())
		if err := errors.Join(os.MkdirAll(data, 0o755), os.WriteFile(file, []byte(config), 0o600)); err != nil {
			t.Fatal(err)
		}
		return java("org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	})
	servertest.Await(t, "ZooKeeper serves", func() bool { // which is after it has begun to listen
		c, err := net.DialTimeout("tcp", s.Address, time.Second)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = c.Write([]byte("srvr"))
		said, _ := io.ReadAll(c)
		return bytes.Contains(said, []byte("Mode: "))
	})
	playsExact(t, "zookeeper://"+s.Address)
}

func playsExact(t *testing.T, leases string) {
	t.Helper()
	showtest.Exact(t, theShow(), "-lease", leases, "-ticks", "4", "-freezes", "1", "-kills", "1")
}

func TestAStoreThatIsNotThereIsSaidClearly(t *testing.T) {
	for _, lease := range []string{"redis://127.0.0.1:1/0", "etcd://127.0.0.1:1", "consul://127.0.0.1:1", "zookeeper://127.0.0.1:1"} {
		var out bytes.Buffer
		if status := show.Run(t.Context(), theShow(), []string{"-lease", lease}, &out, &out); status != show.StatusNot || !strings.Contains(out.String(), "-lease: ") {
			t.Errorf("%s: status %d: %s", lease, status, out.String())
		}
	}
	showtest.Refused(t, show.StatusUsage, theShow, map[string]string{
		"-lease s3://bucket": "-lease: want one of nats (a server in this process), nats://HOST:PORT/BUCKET, postgres://…, etcd://HOST:PORT,…, consul://HOST:PORT, ",
	})
}
