// Package etcdtest runs a real etcd in the test's process. It is a module of its own, so that the
// server stays out of go.sum of those who use etcdstore.
package etcdtest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/epochfence/epochfence/internal/freeport"
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
	ports, err := freeport.Take(2)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Address: fmt.Sprintf("127.0.0.1:%d", ports[0]), peer: fmt.Sprintf("127.0.0.1:%d", ports[1]), dir: t.TempDir()}
	t.Cleanup(s.Stop)
	s.run(t, "data")
	return s
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
	c := embed.NewConfig()
	c.Dir = filepath.Join(s.dir, data)
	c.LogLevel, c.LogOutputs = "error", []string{filepath.Join(s.dir, "log")}
	client, peer := url.URL{Scheme: "http", Host: s.Address}, url.URL{Scheme: "http", Host: s.peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	s.etcd = etcd
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(startLimit):
		t.Fatalf("etcd is not ready after %v", startLimit)
	}
}

// Client returns a client of the server at address, which closes when t ends.
func Client(t testing.TB, address string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + address}, DialTimeout: startLimit, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
