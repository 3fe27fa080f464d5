package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/waits"
)

// cluster is the nodes. Its methods are not safe for concurrent use.
type cluster struct{ nodes []*node }

// newCluster starts the nodes, with their data below dir, and returns once a stream can have a
// replica on each.
func newCluster(ctx context.Context, dir string) (*cluster, error) {
	ports, err := freeport.Take(3 * nodes)
	if err != nil {
		return nil, fmt.Errorf("withcluster: %w", err)
	}
	c := &cluster{}
	for i := range nodes {
		name := "node-" + strconv.Itoa(i+1)
		n := &node{config: config{
			Name: name, Dir: filepath.Join(dir, name),
			Client: ports[i], Cluster: ports[nodes+i], Monitor: ports[2*nodes+i], Routes: ports[nodes : 2*nodes],
		}}
		if err := os.Mkdir(n.Dir, 0o700); err != nil {
			c.stop()
			return nil, fmt.Errorf("withcluster: %w", err)
		}
		c.nodes = append(c.nodes, n)
		if err := n.start(); err != nil {
			c.stop()
			return nil, err
		}
	}
	err = c.awaitHealthy(ctx)
	if err == nil {
		err = c.awaitReplicas(ctx)
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *cluster) urls() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = "nats://127.0.0.1:" + strconv.Itoa(n.Client)
	}
	return urls
}

func (c *cluster) awaitHealthy(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.awaitHealthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitReplicas returns once a stream can have a replica on each node. A node is healthy earlier:
// the leader first has to hear from each of the other nodes.
func (c *cluster) awaitReplicas(ctx context.Context) error {
	conn, err := nats.Connect(strings.Join(c.urls(), ","))
	if err != nil {
		return fmt.Errorf("withcluster: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("withcluster: %w", err)
	}
	const name = "withcluster"
	try := func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a request lost with a leader is never answered
		defer cancel()
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Replicas: nodes}); err != nil {
			return err
		}
		return js.DeleteStream(ctx, name)
	}
	if !waits.Until(ctx, 100*time.Millisecond, func() bool { err = try(); return err == nil }) {
		return fmt.Errorf("withcluster: a stream cannot have %d replicas: %w: %w", nodes, context.Cause(ctx), err)
	}
	return nil
}

func (c *cluster) stop() {
	for _, n := range c.nodes {
		n.kill()
	}
}

func (c *cluster) killEach(ctx context.Context, every, down time.Duration, say func(string)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	kills := 0
	defer func() { say(fmt.Sprintf("nodes were killed %d times", kills)) }()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		n := c.nodes[i%len(c.nodes)]
		if err := c.bounce(ctx, n, down); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			say(err.Error())
			return err
		}
		kills++
		say(n.Name + " was killed, started again, and has caught up")
	}
}

// bounce kills a node, starts it again after down, and waits until all nodes are healthy.
func (c *cluster) bounce(ctx context.Context, n *node, down time.Duration) error {
	n.kill()
	waits.Sleep(ctx, down)
	if err := n.start(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("it takes too long"))
	defer cancel()
	return c.awaitHealthy(limited)
}

func newReport(w io.Writer) func(string) {
	begin := time.Now()
	return func(line string) {
		fmt.Fprintf(w, "withcluster: %s: %s\n", time.Since(begin).Round(100*time.Millisecond), line)
	}
}

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
