package natstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/freeport"
)

const (
	// startLimit limits one start, which takes some milliseconds on an idle machine.
	startLimit = 30 * time.Second

	stopLimit = 30 * time.Second

	// anyPort is a free port, chosen at the first start.
	anyPort = server.RANDOM_PORT
)

// Server is one nats-server with JetStream. Its methods are safe for concurrent use.
type Server struct {
	log *tail

	mu      sync.Mutex
	options *server.Options // with the port after the first start
	running *server.Server  // nil while stopped
}

// Configure changes a server's options before it starts. It must not change addresses and the data
// directory, which natstest sets.
type Configure func(*server.Options)

// New starts a server whose data is below dir, which must exist. End it with Stop.
func New(dir string, configure ...Configure) (*Server, error) {
	s := &Server{log: &tail{}, options: NodeOptions("natstest", dir)}
	for _, c := range configure {
		c(s.options)
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	return s, nil
}

// NodeOptions returns the options of a server on a free loopback port with its data below dir. The
// caller may change them.
func NodeOptions(name, dir string) *server.Options {
	return &server.Options{
		ServerName:         name,
		Host:               "127.0.0.1",
		Port:               anyPort,
		JetStream:          true,
		StoreDir:           dir,
		JetStreamMaxMemory: 256 << 20,
		JetStreamMaxStore:  8 << 30,
		NoSigs:             true, // the program handles its signals itself
		NoLog:              true,
		// Test data need not survive a power failure.
		SyncInterval: time.Minute,
	}
}

// Start starts the server again after Stop, with its data, on the same port.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return errors.New("natstest: start: the server is running")
	}
	if err := keepStreamsDir(s.options.StoreDir); err != nil {
		return fmt.Errorf("natstest: %w", err)
	}
	started, err := s.launch()
	if err != nil {
		return err
	}
	s.running = started
	return nil
}

// keepStreamsDir puts a directory that is no stream into a server's directory of streams. When the
// last stream of an account is deleted, nats-server (2.15.2, stream.stop) removes that directory if
// it is empty. It does so in a goroutine after it has answered, so that the creation of the next
// stream sometimes fails with "error creating store for stream" (10049).
func keepStreamsDir(store string) error {
	return os.MkdirAll(filepath.Join(store, server.JetStreamStoreDir, account, "streams", "no-stream"), 0o700)
}

func (s *Server) launch() (*server.Server, error) {
	if s.options.Port == anyPort {
		ports, err := freeport.Take(1)
		if err != nil {
			return nil, fmt.Errorf("natstest: %w", err)
		}
		s.options.Port = ports[0]
	}
	// The server modifies its options.
	ns, err := server.NewServer(s.options.Clone())
	if err != nil {
		return nil, fmt.Errorf("natstest: start: %w", err)
	}
	ns.SetLoggerV2(s.log, false, false, false)
	ns.Start()
	if !ns.ReadyForConnections(startLimit) {
		ns.Shutdown()
		return nil, fmt.Errorf("natstest: the server was not ready after %v:\n%s", startLimit, s.LogTail())
	}
	return ns, nil
}

// Stop stops the server and returns when it has ended. Its data stays.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	gone := make(chan struct{})
	go func(ns *server.Server) {
		defer close(gone)
		ns.Shutdown()
		ns.WaitForShutdown()
	}(s.running)
	select {
	case <-gone:
	case <-time.After(stopLimit):
		return fmt.Errorf("natstest: the server has not stopped after %v:\n%s", stopLimit, s.LogTail())
	}
	s.running = nil
	return nil
}

// URL returns the URL for clients. It stays the same across restarts.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("nats://127.0.0.1:%d", s.options.Port)
}

// Dir returns the server's data directory. It may be copied and replaced while the server is
// stopped.
func (s *Server) Dir() string { return s.options.StoreDir }

// Embedded returns the server itself, or nil while it is stopped.
func (s *Server) Embedded() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// LogTail returns the server's last warnings and errors.
func (s *Server) LogTail() string { return s.log.String() }

type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 40

func (t *tail) add(level, format string, args []any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := time.Now().Format("15:04:05.000 ") + level + " " + fmt.Sprintf(format, args...)
	t.lines = append(t.lines, line)
	t.lines = t.lines[max(0, len(t.lines)-tailLines):]
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}

func (t *tail) Noticef(string, ...any)            {}
func (t *tail) Debugf(string, ...any)             {}
func (t *tail) Tracef(string, ...any)             {}
func (t *tail) Warnf(format string, args ...any)  { t.add("WRN", format, args) }
func (t *tail) Errorf(format string, args ...any) { t.add("ERR", format, args) }
func (t *tail) Fatalf(format string, args ...any) { t.add("FTL", format, args) }

// reconnectWait is short because the server is on loopback.
const reconnectWait = 50 * time.Millisecond

// Start starts a server for t alone. If t has failed at its end, its output has the end of the log.
func Start(t testing.TB, configure ...Configure) *Server {
	t.Helper()
	notInShort(t)
	s, err := New(t.TempDir(), configure...)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, s.LogTail, s.Stop)
	return s
}

// Connect returns a connection that closes when t ends. It reconnects without a limit.
func (s *Server) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s.URL(), options)
}

// JetStream returns the JetStream of a new connection, as [Server.Connect] makes it.
func (s *Server) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return stream(t, s.Connect(t, options...))
}

// StartCluster starts a cluster for t alone. If t has failed at its end, its output has the ends of the logs.
func StartCluster(t testing.TB, nodes int, configure ...Configure) *Cluster {
	t.Helper()
	notInShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*startLimit)
	defer cancel()
	c, err := NewCluster(ctx, t.TempDir(), nodes, configure...)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, c.LogTail, c.Close)
	return c
}

// Connect returns a connection to any node, which closes when t ends. It reconnects to another node
// if its own ends.
func (c *Cluster) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, strings.Join(c.URLs(), ","), options)
}

// JetStream returns the JetStream of a new connection, as [Cluster.Connect] makes it.
func (c *Cluster) JetStream(t testing.TB, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return stream(t, c.Connect(t, options...))
}

func ends(t testing.TB, logTail func() string, stop func() error) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the servers' logs end with\n%s", logTail())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func stream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func connect(t testing.TB, urls string, options []nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers()}, options...)
	nc, err := nats.Connect(urls, options...)
	for limit := time.Now().Add(startLimit); err != nil && time.Now().Before(limit); { // a machine may stand for longer than the 2 s of an attempt
		nc, err = nats.Connect(urls, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: nats-server is not started")
	}
}

// Backup is a copy of a stream, as `nats stream backup` makes it. A bucket is a stream with the
// name "KV_" and the bucket's name.
type Backup struct {
	config server.StreamConfig
	state  server.StreamState
	chunks [][]byte
}

// TakeBackup copies a stream without its consumers.
func TakeBackup(ctx context.Context, nc *nats.Conn, stream string) (*Backup, error) {
	b, err := takeBackup(ctx, nc, stream)
	if err != nil {
		return nil, fmt.Errorf("natstest: back up stream %q: %w", stream, err)
	}
	return b, nil
}

func takeBackup(ctx context.Context, nc *nats.Conn, stream string) (*Backup, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	var answer server.JSApiStreamSnapshotResponse
	err = call(ctx, nc, fmt.Sprintf(server.JSApiStreamSnapshotT, stream),
		server.JSApiStreamSnapshotRequest{DeliverSubject: inbox, NoConsumers: true}, &answer, &answer.ApiResponse)
	if err != nil {
		return nil, err
	}
	b := &Backup{config: *answer.Config, state: *answer.State}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		if len(m.Data) == 0 {
			if status := m.Header.Get("Status"); status != "" && status != "204" {
				return nil, fmt.Errorf("it ended with %s %s", status, m.Header.Get("Description"))
			}
			return b, nil
		}
		b.chunks = append(b.chunks, m.Data)
		if m.Reply == "" {
			continue
		}
		if err := m.Respond(nil); err != nil {
			return nil, err
		}
	}
}

// Restore makes the stream again, with its sequences and times. Only its creation time is new. The
// stream that it replaces must have been deleted.
func (b *Backup) Restore(ctx context.Context, nc *nats.Conn) error {
	if err := b.restore(ctx, nc); err != nil {
		return fmt.Errorf("natstest: restore stream %q: %w", b.config.Name, err)
	}
	return nil
}

func (b *Backup) restore(ctx context.Context, nc *nats.Conn) error {
	var answer server.JSApiStreamRestoreResponse
	err := call(ctx, nc, fmt.Sprintf(server.JSApiStreamRestoreT, b.config.Name),
		server.JSApiStreamRestoreRequest{Config: b.config, State: b.state}, &answer, &answer.ApiResponse)
	if err != nil {
		return err
	}
	for _, chunk := range b.chunks {
		if _, err := nc.RequestWithContext(ctx, answer.DeliverSubject, chunk); err != nil {
			return err
		}
	}
	var end server.JSApiStreamCreateResponse
	return call(ctx, nc, answer.DeliverSubject, nil, &end, &end.ApiResponse)
}

func call(ctx context.Context, nc *nats.Conn, subject string, request, answer any, head *server.ApiResponse) error {
	var data []byte
	if request != nil {
		var err error
		if data, err = json.Marshal(request); err != nil {
			return err
		}
	}
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return err
	}
	if head.Error != nil {
		return errors.New(head.Error.Description)
	}
	return nil
}
