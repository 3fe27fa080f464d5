package batches_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
)

// The requests of a relay to NATS.
const (
	natsInfo     = 1 // the stream's configuration
	natsRead     = 2 // of the position
	natsPosition = 3 // stored without messages
	natsMessage  = 4 // of a batch
	natsCommit   = 5 // of the batch, with its position
)

var natsSteps = map[int]step{
	stepBegin: {"a transaction of the database", 3, 1}, stepCommitted: {"the end of a transaction of the database", 3, 1}, natsInfo: {"the stream's configuration", 1, 0},
	natsRead: {"the read of the position", 1, 0}, natsPosition: {"a position", 2, 1}, natsMessage: {"a message", 3, 1}, natsCommit: {"a commit", 3, 1},
}

// connectNATS returns a connection of p, which calls p.at before each step.
func (p *process) connectNATS(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.SetCustomDialer(natsDialer{p}), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.IgnoreDiscoveredServers(), nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

type natsDialer struct{ of *process }

func (d natsDialer) Dial(network, address string) (net.Conn, error) {
	if d.of.killed() {
		return nil, errKilled
	}
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return nil, err
	}
	return &natsConn{Conn: c, of: d.of}, nil
}

// natsConn calls its process before each message that is a step.
type natsConn struct {
	net.Conn
	of   *process
	mu   sync.Mutex
	lost bool
}

// Write gets whole messages of the protocol, several at once: see natsWriter in nats.go.
func (c *natsConn) Write(b []byte) (int, error) {
	n := 0
	for rest := b; len(rest) > 0; {
		var one []byte
		one, rest = cut(rest)
		step, is := stepOf(one)
		if is = is && !c.of.opening.Load(); is {
			c.of.at(step)
		}
		if c.of.killed() {
			_ = c.Close()
			return n, errKilled
		}
		if is && c.of.lose != nil && c.of.lose(step) {
			c.mu.Lock()
			c.lost = true
			c.mu.Unlock()
		}
		if _, err := c.Conn.Write(one); err != nil {
			return n, err
		}
		n += len(one)
	}
	return n, nil
}

// cut returns the first message of the protocol: a line, and the payload whose size it says.
func cut(b []byte) (one, rest []byte) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 0 {
		return b, nil
	}
	size, line := end+2, string(b[:end])
	if fields := strings.Fields(line); len(fields) > 2 && (fields[0] == "PUB" || fields[0] == "HPUB") {
		n, _ := strconv.Atoi(fields[len(fields)-1])
		size = min(len(b), size+n+2)
	}
	return b[:size], b[size:]
}

func stepOf(message []byte) (step int, is bool) {
	line, rest, _ := bytes.Cut(message, []byte("\r\n"))
	switch {
	case bytes.HasPrefix(line, []byte("PUB $JS.API.STREAM.INFO")):
		return natsInfo, true
	case bytes.HasPrefix(line, []byte("PUB $JS.API.STREAM.MSG.GET")):
		return natsRead, true
	case !bytes.HasPrefix(line, []byte("HPUB ")):
		return 0, false
	case bytes.Contains(rest, []byte("Nats-Batch-Commit")):
		return natsCommit, true
	case bytes.Contains(rest, []byte("Nats-Batch-Id")), bytes.Contains(rest, []byte("Nats-Msg-Id")):
		return natsMessage, true
	}
	return natsPosition, bytes.Contains(rest, []byte("Nats-Expected-Last"))
}

// Read loses the answers after a step: they come, and the process does not get them.
func (c *natsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	if lost || c.of.killed() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// natsRig is a rig on a stream of a NATS.
type natsRig struct {
	*rig
	url   string
	js    jetstream.JetStream // of the test
	o     natsoutbox.Options
	adder *natsoutbox.Box[*tx]
}

var streams struct {
	mu sync.Mutex
	n  int
}

// newNATSRig makes a stream of its own. The subjects of its messages are STREAM.SUBJECT.
func newNATSRig(t *testing.T, url string, configure ...func(*jetstream.StreamConfig)) *natsRig {
	t.Helper()
	streams.mu.Lock()
	streams.n++
	name := "S" + strconv.Itoa(streams.n)
	streams.mu.Unlock()
	r := &natsRig{rig: startRig(t, "PUBLISH", natsSteps), url: url}
	r.destination = r
	r.js = (&process{at: func(int) {}}).connectNATS(t, url)
	r.o = natsoutbox.Options{
		Stream: name, Positions: "epochfence-positions." + name, Batch: 3, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, RequestTimeout: 2 * time.Second, Logger: logger(t),
	}
	c := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>", "epochfence-positions." + name + ".>"}, AllowAtomicPublish: true}
	for _, f := range configure {
		f(&c)
	}
	r.await("a stream", func() bool { // a cluster may have to hear of its nodes first
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := r.js.CreateStream(ctx, c)
		if err != nil && !jsapi.Passing(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	return r
}

// box returns a box of a process, whose steps begin afterwards.
func (r *natsRig) box(p *process) *natsoutbox.Box[*tx] {
	r.Helper()
	o := r.o
	p.opening.Store(true)
	defer p.opening.Store(false)
	o.JetStream = p.connectNATS(r.T, r.url)
	o.Observe = r.observe
	var box *natsoutbox.Box[*tx]
	r.await("a box", func() (ok bool) {
		var err error
		if box, err = natsoutbox.Open(context.WithoutCancel(r.Context()), table{}, o); err != nil && !jsapi.Passing(err) {
			r.Fatal(err)
		}
		return err == nil
	})
	return box
}

func (r *natsRig) relay(p *process) func(context.Context, consumer.Background[*tx]) {
	return r.box(p).Relay
}

// add adds messages with these keys, each in a transaction. Their data are numbers that rise.
func (r *natsRig) add(keys ...string) {
	r.Helper()
	for _, key := range keys {
		r.addTo(r.o.Stream+"."+key, key)
	}
}

// addTo adds a message, which the test's own reader will look for.
func (r *natsRig) addTo(subject, key string) int64 {
	r.Helper()
	r.mu.Lock()
	n := r.n
	r.n++
	r.added[key] = append(r.added[key], n)
	r.mu.Unlock()
	return r.put(natsoutbox.Message{Subject: subject, Key: key, Data: []byte(strconv.Itoa(n))})
}

// put adds a message.
func (r *natsRig) put(m natsoutbox.Message) int64 {
	r.Helper()
	o := r.o
	o.JetStream = r.js
	if r.adder == nil {
		r.await("a box", func() (ok bool) {
			var err error
			r.adder, err = natsoutbox.Open(r.Context(), table{}, o)
			return err == nil
		})
	}
	var id int64
	r.commit(func(t *tx) error {
		err := r.adder.Add(r.Context(), t, epoch.Message{Partition: orders, Offset: 7}, m)
		id = r.db.Last
		return err
	})
	return id
}

// found returns what a plain consumer of the stream finds, by the last token of the subject, or by the
// header Key. A consumer may be on a replica that lags: it reads up to the end that the leader names.
func (r *natsRig) found() map[string][]int {
	r.Helper()
	var end uint64
	r.await("a leader", func() bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
		defer cancel()
		var info jetstream.StreamInfo
		err := jsapi.Ask(ctx, r.js, "STREAM.INFO."+r.o.Stream, struct{}{}, &info)
		if err == nil && !jsapi.Leads(info.Cluster, info.Config.Replicas) {
			err = jsapi.ErrNoLeader
		}
		if err != nil && !jsapi.Passing(err) {
			r.Fatal(err)
		}
		end = info.State.LastSeq
		return err == nil
	})
	all, messages := map[string][]int{}, r.messages(1)
	defer func() { messages.Stop() }()
	for at := uint64(0); at < end; {
		m, err := messages.Next(jetstream.NextMaxWait(2 * time.Second))
		if err != nil { // the consumer is lost with its node
			messages.Stop()
			messages = r.messages(at + 1)
			continue
		}
		about, err := m.Metadata()
		if err != nil {
			r.Fatal(err)
		}
		at = about.Sequence.Stream
		if strings.HasPrefix(m.Subject(), r.o.Positions+".") {
			continue
		}
		key := m.Subject()[strings.LastIndex(m.Subject(), ".")+1:]
		if named := m.Headers().Get("Key"); named != "" {
			key = named
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(m.Data())))
		if err != nil {
			r.Errorf("read %q", m.Data())
		}
		all[key] = append(all[key], n)
	}
	return all
}

func (r *natsRig) messages(from uint64) (messages jetstream.MessagesContext) {
	r.Helper()
	r.await("a consumer", func() bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
		defer cancel()
		c, err := r.js.OrderedConsumer(ctx, r.o.Stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from})
		if err == nil {
			messages, err = c.Messages() // one at a time would be a consumer each
		}
		return err == nil
	})
	return messages
}
