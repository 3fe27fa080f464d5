package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

// stopLimit limits a clean shutdown, which takes about two seconds.
const stopLimit = 30 * time.Second

// Broker is one Apache Kafka in a process of its own. On Linux it dies with this process. Its
// methods are not safe for concurrent use.
type Broker struct {
	// Addr is the bootstrap address of the listener without a login.
	Addr string

	// SASLAddr is the address of the listener for [Config.Users]. It is empty without Users.
	SASLAddr string

	// DataDir has one directory for each partition, named topic-number. Change its files only while
	// the broker is stopped.
	DataDir string

	dir  string
	libs string
	proc *process // nil while stopped
}

// New starts a broker from the jars in libs and returns when it serves clients. The broker writes
// only below dir, which must exist. End it with [Broker.Stop] or [Broker.Kill], and remove dir. ctx
// limits the start alone. The error of a failed start includes the end of the broker's log.
func New(ctx context.Context, libs, dir string, c Config) (*Broker, error) {
	all, err := NewCluster(ctx, libs, dir, 1, c)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// NewCluster starts n brokers as [New] starts one. Their node IDs are 1 to n, and each is a controller, too. Internal
// topics have a replica on each of them, and topics as many as they are created with.
func NewCluster(ctx context.Context, libs, dir string, n int, c Config) ([]*Broker, error) {
	addrs, err := freeAddrs(3 * n)
	if err != nil {
		return nil, err
	}
	all, id, errs := make([]*Broker, n), newClusterID(), make([]error, n)
	var starting sync.WaitGroup
	for i := range all {
		b := &Broker{Addr: addrs[3*i], dir: dir, libs: libs}
		if n > 1 {
			b.dir = filepath.Join(dir, strconv.Itoa(i+1))
		}
		if b.DataDir = filepath.Join(b.dir, "data"); len(c.Users) > 0 {
			b.SASLAddr = addrs[3*i+2]
		}
		all[i] = b
		starting.Go(func() { errs[i] = b.start(ctx, id, c.serverProperties(i+1, b.DataDir, addrs)) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, b := range all {
			b.Kill()
		}
		return nil, err
	}
	return all, nil
}

// start formats the directory of a new broker and starts it.
func (b *Broker) start(ctx context.Context, cluster, properties string) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return fmt.Errorf("kafkatest: %w", err)
	}
	if err := os.WriteFile(b.properties(), []byte(properties), 0o600); err != nil {
		return fmt.Errorf("kafkatest: %w", err)
	}
	format, err := b.java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", b.properties())
	if err != nil {
		return err
	}
	select {
	case <-format.done:
		err = format.err
	case <-ctx.Done():
		format.kill()
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("kafkatest: format %s: %w; its output ends with\n%s", b.DataDir, err, b.LogTail())
	}
	return b.Restart(ctx)
}

// Restart starts the broker again on the same addresses and data. It first stops a running broker
// cleanly.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Stop(); err != nil {
		return err
	}
	proc, err := b.java("kafka.Kafka", b.properties())
	if err != nil {
		return err
	}
	if err := b.awaitReady(ctx, proc); err != nil {
		proc.kill()
		return fmt.Errorf("kafkatest: start Apache Kafka: %w; its log ends with\n%s", err, b.LogTail())
	}
	b.proc = proc
	return nil
}

// Stop shuts the broker down cleanly. It does nothing if the broker is not running.
func (b *Broker) Stop() error {
	if b.proc == nil {
		return nil
	}
	_ = b.proc.cmd.Process.Signal(syscall.SIGTERM) // fails only if the process has ended
	select {
	case <-b.proc.done:
		b.proc = nil
		return nil
	case <-time.After(stopLimit):
		b.Kill()
		return fmt.Errorf("kafkatest: the broker was killed: it did not shut down in %v; its log ends with\n%s", stopLimit, b.LogTail())
	}
}

// Kill ends the broker at once, like a crash.
func (b *Broker) Kill() {
	if b.proc != nil {
		b.proc.kill()
		b.proc = nil
	}
}

// LogTail returns the end of the broker's log.
func (b *Broker) LogTail() string {
	const most = 8 << 10
	text, err := os.ReadFile(b.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func (b *Broker) properties() string { return filepath.Join(b.dir, "server.properties") }
func (b *Broker) log() string        { return filepath.Join(b.dir, "kafka.log") }

// awaitReady returns when the broker is registered and answers. It accepts connections a moment
// earlier.
func (b *Broker) awaitReady(ctx context.Context, proc *process) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	if err != nil {
		return err
	}
	defer client.Close()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, 2*time.Second)
		meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ask, client)
		cancel()
		if err == nil && len(meta.Brokers) > 0 {
			return nil
		}
		select {
		case <-poll.C:
		case <-proc.done:
			return fmt.Errorf("it ended: %w", proc.err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (b *Broker) java(class string, args ...string) (*process, error) {
	log, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	defer log.Close() // the child has its own
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	args = append([]string{
		"-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.group=info",
		"-cp", filepath.Join(b.libs, "*"), class,
	}, args...)
	cmd := exec.Command(java, args...)
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("kafkatest: start Java: %w; install Java 17 or later", err)
	}
	return proc, nil
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read after done
}

// start starts cmd from a thread that lives as long as the child. Linux sends the death signal when
// the thread that forked ends, not when the process ends.
func start(cmd *exec.Cmd) (*process, error) {
	subprocess.DieWithParent(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has ended
	<-p.done
}

// Config changes a broker's defaults: a single node, no automatic topics, no rebalance delay, short
// sessions allowed, KIP-848 groups with a session of 6 s and a heartbeat every 300 ms, small
// buffers.
type Config struct {
	// Properties are added to server.properties and override the defaults.
	Properties map[string]string

	// Users adds a listener, [Broker.SASLAddr], where these users log in with SASL/PLAIN and their
	// passwords.
	Users map[string]string

	// Keystore is a PEM file with the key and the certificate of that listener, which then uses
	// TLS. The broker reads it at each start.
	Keystore string

	// ACLs makes the broker check permissions. Clients of [Broker.Addr] may do everything; Users
	// need an ACL.
	ACLs bool
}

// serverProperties returns those of a node. Each node has three addresses: for clients, for controllers, and for Users.
func (c Config) serverProperties(node int, dataDir string, addrs []string) string {
	client, controller, sasl := addrs[3*node-3], addrs[3*node-2], ""
	if len(c.Users) > 0 {
		sasl = addrs[3*node-1]
	}
	var voters []string
	for i := 0; i < len(addrs); i += 3 {
		voters = append(voters, fmt.Sprintf("%d@%s", i/3+1, addrs[i+1]))
	}
	replicas, most := strconv.Itoa(len(voters)), strconv.Itoa(len(voters)/2+1)
	listeners, protocols := "PLAINTEXT://"+client, "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
	if sasl != "" {
		listeners += ",SASL://" + sasl
		protocols += ",SASL:SASL_PLAINTEXT"
	}
	p := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          strconv.Itoa(node),
		"controller.quorum.voters":                         strings.Join(voters, ","),
		"listeners":                                        listeners + ",CONTROLLER://" + controller,
		"advertised.listeners":                             listeners,
		"controller.listener.names":                        "CONTROLLER",
		"listener.security.protocol.map":                   protocols,
		"log.dirs":                                         dataDir,
		"auto.create.topics.enable":                        "false",
		"group.min.session.timeout.ms":                     "500",
		"group.consumer.min.session.timeout.ms":            "500",
		"group.consumer.session.timeout.ms":                "6000",
		"group.consumer.min.heartbeat.interval.ms":         "100",
		"group.consumer.heartbeat.interval.ms":             "300",
		"group.initial.rebalance.delay.ms":                 "0",
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 replicas,
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    most,
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            most,
		"broker.session.timeout.ms":                        "3000", // a restart waits until a killed broker's registration expires
		"broker.heartbeat.interval.ms":                     "500",
		"log.cleaner.dedupe.buffer.size":                   "4194304", // Kafka's default is 128 MiB
	}
	if sasl != "" {
		var users strings.Builder
		for _, user := range slices.Sorted(maps.Keys(c.Users)) {
			fmt.Fprintf(&users, " user_%s=%q", user, c.Users[user])
		}
		p["sasl.enabled.mechanisms"] = "PLAIN"
		if c.Keystore != "" {
			p["listener.security.protocol.map"] = strings.Replace(protocols, "SASL_PLAINTEXT", "SASL_SSL", 1)
			p["listener.name.sasl.ssl.keystore.type"] = "PEM"
			p["listener.name.sasl.ssl.keystore.location"] = c.Keystore
		}
		p["listener.name.sasl.plain.sasl.jaas.config"] =
			"org.apache.kafka.common.security.plain.PlainLoginModule required" + users.String() + ";"
	}
	if c.ACLs {
		p["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
		p["super.users"] = "User:ANONYMOUS"
	}
	maps.Copy(p, c.Properties)

	var file strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&file, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return file.String()
}

// newClusterID returns a random ID in Kafka's form: 16 bytes in URL-safe base64. It does not begin
// with a hyphen, because the command that takes it would read an option.
func newClusterID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}

func freeAddrs(n int) ([]string, error) {
	ports, err := freeport.Take(n)
	if err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	addrs := make([]string, n)
	for i, port := range ports {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs, nil
}
