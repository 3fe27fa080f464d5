package natsoutbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches/batchestest"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
)

const patience = time.Minute

type (
	database = batchestest.Database
	tx       = batchestest.Tx
	table    = batchestest.Table
)

var orders = batchestest.Orders

// The steps of a relay: two in the database, and the requests to NATS.
const (
	stepBegin     = -1 // before a transaction of the database
	stepCommitted = -2 // after it
	stepInfo      = 1  // the stream's configuration
	stepRead      = 2  // of the position
	stepPosition  = 3  // stored without messages
	stepMessage   = 4  // of a batch
	stepCommit    = 5  // of the batch, with its position
)

// process is one that may run a relay: what it does at a step can be held up, and its connections cut.
type process struct {
	at   func(step int) // called before each step; it may block
	lose func(step int) bool

	opening atomic.Bool // a box: its requests are no steps

	mu   sync.Mutex
	dead bool
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

func (p *process) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

var errKilled = errors.New("the process was killed")

// connect returns a connection of p, which calls p.at before each step.
func (p *process) connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.SetCustomDialer(dialer{p}), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0),
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

type dialer struct{ of *process }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	if d.of.killed() {
		return nil, errKilled
	}
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, of: d.of}, nil
}

// conn calls its process before each message that is a step.
type conn struct {
	net.Conn
	of   *process
	mu   sync.Mutex
	lost bool
}

// Write gets whole messages of the protocol, several at once: see natsWriter in nats.go.
func (c *conn) Write(b []byte) (int, error) {
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
		return stepInfo, true
	case bytes.HasPrefix(line, []byte("PUB $JS.API.STREAM.MSG.GET")):
		return stepRead, true
	case !bytes.HasPrefix(line, []byte("HPUB ")):
		return 0, false
	case bytes.Contains(rest, []byte("Nats-Batch-Commit")):
		return stepCommit, true
	case bytes.Contains(rest, []byte("Nats-Batch-Id")), bytes.Contains(rest, []byte("Nats-Msg-Id")):
		return stepMessage, true
	}
	return stepPosition, bytes.Contains(rest, []byte("Nats-Expected-Last"))
}

// Read loses the answers after a step: they come, and the process does not get them.
func (c *conn) Read(b []byte) (int, error) {
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

// claim is a consumer.Background.
type claim struct {
	db      *database
	of      *process
	epoch   epoch.Epoch
	applied chan struct{}
	end     context.CancelFunc
}

func (c *claim) Partition() epoch.Partition { return orders }
func (c *claim) Epoch() epoch.Epoch         { return c.epoch }
func (c *claim) Applied() <-chan struct{}   { return c.applied }
func (c *claim) Above(epoch.Epoch) error    { return nil }

func (c *claim) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	c.of.at(stepBegin)
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.of.killed() {
		return errKilled
	}
	err := c.db.Do(c.epoch, func(t *tx) error { return apply(ctx, t) })
	if errors.Is(err, epoch.ErrStale) {
		c.end()
	}
	c.of.at(stepCommitted)
	if c.of.killed() {
		return errKilled
	}
	return err
}

// rig is a stream of a NATS, and a database.
type rig struct {
	*testing.T
	db  *database
	url string
	js  jetstream.JetStream // of the test
	o   natsoutbox.Options

	mu      sync.Mutex
	running []*running
	events  []outbox.Event
	added   map[string][]int // by key, in order
	n       int
	adder   *natsoutbox.Box[*tx]
}

type running struct {
	*claim
	done chan struct{}
}

var streams struct {
	mu sync.Mutex
	n  int
}

// newRig makes a stream of its own. The subjects of its messages are STREAM.SUBJECT.
func newRig(t *testing.T, url string, configure ...func(*jetstream.StreamConfig)) *rig {
	t.Helper()
	streams.mu.Lock()
	streams.n++
	name := "S" + strconv.Itoa(streams.n)
	streams.mu.Unlock()
	r := &rig{T: t, db: batchestest.NewDatabase("PUBLISH"), url: url, added: map[string][]int{}}
	r.js = (&process{at: func(int) {}}).connect(t, url)
	r.o = natsoutbox.Options{
		Stream: name, Positions: "epochfence-positions." + name, Batch: 3, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, RequestTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	}
	if testing.Verbose() && os.Getenv("NATSOUTBOX_LOG") != "" {
		r.o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
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
	t.Cleanup(func() {
		for _, run := range r.all() {
			r.stop(run)
		}
	})
	return r
}

func (r *rig) all() []*running {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.running)
}

// box returns a box of a process, whose steps begin afterwards.
func (r *rig) box(p *process) *natsoutbox.Box[*tx] {
	r.Helper()
	o := r.o
	p.opening.Store(true)
	defer p.opening.Store(false)
	o.JetStream = p.connect(r.T, r.url)
	o.Observe = func(e outbox.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
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

// takeOver claims the partition for p, and runs its relay.
func (r *rig) takeOver(p *process) *running {
	r.Helper()
	if p.at == nil {
		p.at = func(int) {}
	}
	box := r.box(p)
	r.db.Lock()
	r.db.Owner++
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	run := &running{&claim{db: r.db, of: p, epoch: r.db.Owner, applied: make(chan struct{}, 1), end: cancel}, make(chan struct{})}
	r.db.Unlock()
	r.mu.Lock()
	r.running = append(r.running, run)
	r.mu.Unlock()
	go func() {
		defer close(run.done)
		box.Relay(ctx, run)
	}()
	return run
}

func (r *rig) stop(run *running) {
	r.Helper()
	run.end()
	select {
	case <-run.done:
	case <-time.After(patience):
		r.Error("the relay did not return")
	}
}

// add adds messages with these keys in one transaction. Their data are numbers that rise.
func (r *rig) add(keys ...string) {
	r.Helper()
	for _, key := range keys {
		r.addTo(r.o.Stream+"."+key, key)
	}
}

// addTo adds a message, which the test's own reader will look for.
func (r *rig) addTo(subject, key string) int64 {
	r.Helper()
	r.mu.Lock()
	n := r.n
	r.n++
	r.added[key] = append(r.added[key], n)
	r.mu.Unlock()
	return r.put(natsoutbox.Message{Subject: subject, Key: key, Data: []byte(strconv.Itoa(n))})
}

// put adds a message.
func (r *rig) put(m natsoutbox.Message) int64 {
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
	err := r.db.Do(0, func(t *tx) error {
		err := r.adder.Add(r.Context(), t, epoch.Message{Partition: orders, Offset: 7}, m)
		id = r.db.Last
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	for _, run := range r.all() {
		select {
		case run.applied <- struct{}{}:
		default:
		}
	}
	return id
}

func (r *rig) await(what string, ok func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("not within %v: %s; left: %+v", patience, what, r.db.Left())
		}
	}
}

func (r *rig) awaitEmpty() {
	r.Helper()
	r.await("an empty outbox", func() bool { return len(r.db.Left()) == 0 })
}

// awaitSent does not wait until the partition is idle.
func (r *rig) awaitSent() {
	r.Helper()
	r.await("all records to be sent", func() bool { return len(r.db.Records()) == 0 })
}

// read returns what a plain consumer of the stream finds, by the last token of the subject, or by the
// header Key. A consumer may be on a replica that lags: it reads up to the end that the leader names.
func (r *rig) read() map[string][]int {
	r.Helper()
	var c jetstream.Consumer
	var end uint64
	r.await("a consumer", func() bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
		defer cancel()
		var info jetstream.StreamInfo
		err := jsapi.Ask(ctx, r.js, "STREAM.INFO."+r.o.Stream, struct{}{}, &info)
		if err == nil && !jsapi.Leads(info.Cluster, info.Config.Replicas) {
			err = jsapi.ErrNoLeader
		}
		if err == nil {
			end = info.State.LastSeq
			c, err = r.js.OrderedConsumer(ctx, r.o.Stream, jetstream.OrderedConsumerConfig{})
		}
		if err != nil && !jsapi.Passing(err) {
			r.Fatal(err)
		}
		return err == nil
	})
	found := map[string][]int{}
	for at := uint64(0); at < end; {
		m, err := c.Next(jetstream.FetchMaxWait(2 * time.Second))
		if err != nil { // the consumer is lost with its node
			r.await("a consumer", func() bool {
				c, err = r.js.OrderedConsumer(r.Context(), r.o.Stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at + 1})
				return err == nil
			})
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
		found[key] = append(found[key], n)
	}
	return found
}

// wantAll checks that the target has what was added, once and in the order of each key.
func (r *rig) wantAll() {
	r.Helper()
	found := r.read()
	for key, want := range r.added {
		got := found[key]
		if !slices.Equal(got, want) {
			r.Errorf("key %s: a reader has %v, want %v", key, got, want)
		}
	}
}

func (r *rig) observed(kind outbox.Kind) (ids []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func itoa(id int64) string { return strconv.FormatInt(id, 10) }

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newMsg(subject, data string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte(data)
	return m
}
