package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// nodeVariable has the configuration of a node, and makes a process a node.
const nodeVariable = "EPOCHFENCE_WITHCLUSTER_NODE"

type config struct {
	Name    string
	Dir     string
	Client  int // ports on 127.0.0.1
	Cluster int
	Monitor int
	Routes  []int
}

// serveNode runs a node until it is killed, or until its standard input ends with the parent.
func serveNode(encoded string) error {
	// A terminal's interrupt is for the command. Nodes end with the parent.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	var c config
	if err := json.Unmarshal([]byte(encoded), &c); err != nil {
		return fmt.Errorf("withcluster: node: %w", err)
	}
	o := &server.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Client, HTTPHost: "127.0.0.1", HTTPPort: c.Monitor,
		Cluster:   server.ClusterOpts{Name: "withcluster", Host: "127.0.0.1", Port: c.Cluster},
		JetStream: true, StoreDir: c.Dir, JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 16 << 30,
		NoSigs: true, LogFile: filepath.Join(filepath.Dir(c.Dir), c.Name+".log"),
	}
	for _, port := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: "127.0.0.1:" + strconv.Itoa(port)})
	}
	s, err := server.NewServer(o)
	if err != nil {
		return fmt.Errorf("withcluster: %s: %w", c.Name, err)
	}
	s.ConfigureLogger()
	s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return nil
}

type node struct {
	config
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
}

func (n *node) start() error {
	encoded, err := json.Marshal(n.config)
	if err != nil {
		return fmt.Errorf("withcluster: %w", err)
	}
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("withcluster: %w", err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), nodeVariable+"="+string(encoded))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("withcluster: start %s: %w", n.Name, err)
	}
	exited := make(chan struct{})
	n.cmd, n.stdin, n.exited = cmd, stdin, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return nil
}

func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.exited
	_ = n.stdin.Close()
	n.cmd = nil
}

// awaitHealthy returns once the node has caught up with all its streams.
func (n *node) awaitHealthy(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		said, err := n.health(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-n.exited:
			return fmt.Errorf("withcluster: %s ended:\n%s", n.Name, n.logTail())
		case <-ctx.Done():
			return fmt.Errorf("withcluster: %s is not healthy: %w: %w: %s\n%s", n.Name, context.Cause(ctx), err, said, n.logTail())
		case <-tick.C:
		}
	}
}

func (n *node) health(ctx context.Context) (said []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/healthz", n.Monitor), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	said, err = io.ReadAll(io.LimitReader(answer.Body, 1<<12))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("it says %s", answer.Status)
	}
	return said, err
}

func (n *node) logTail() []byte {
	log, _ := os.ReadFile(filepath.Join(filepath.Dir(n.Dir), n.Name+".log"))
	return log[max(0, len(log)-2000):]
}
