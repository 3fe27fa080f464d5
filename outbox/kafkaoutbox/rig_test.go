package kafkaoutbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches/batchestest"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

const patience = time.Minute

type (
	database = batchestest.Database
	tx       = batchestest.Tx
	table    = batchestest.Table
)

var orders = batchestest.Orders

// The steps of a relay: two in the database, and the requests to Kafka by their API keys.
const (
	stepBegin     = -1 // before a transaction of the database
	stepCommitted = -2 // after it
	stepInit      = 22
	stepFetch     = 9
	stepPosition  = 28
	stepProduce   = 0
	stepEnd       = 26
	stepDescribe  = 65
	stepNone      = -3
)

// process is one that may run a relay: what it does at a step can be held up, and its connections cut.
type process struct {
	at       func(step int) // called before each step; it may block
	answered func(step int) // called when the answer has come, before the process sees it; it may block
	lose     func(step int) bool
	mu       sync.Mutex
	dead     bool
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

func (p *process) revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = false
}

func (p *process) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

var errKilled = errors.New("the process was killed")

// dial returns connections that call p.at before each request.
func (p *process) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.killed() {
		return nil, errKilled
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, of: p, step: stepNone}, nil
}

type conn struct {
	net.Conn
	of   *process
	mu   sync.Mutex
	lost bool
	step int // of the request without an answer
}

// Write gets one request: franz-go writes each with one call.
func (c *conn) Write(b []byte) (int, error) {
	if len(b) < 6 {
		return c.Conn.Write(b)
	}
	step := int(binary.BigEndian.Uint16(b[4:]))
	c.of.at(step)
	if c.of.killed() {
		_ = c.Close()
		return 0, errKilled
	}
	lost := c.of.lose != nil && c.of.lose(step)
	c.mu.Lock()
	c.lost, c.step = c.lost || lost, step
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// Read loses the answer to a request: it comes, and the process does not get it.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	lost, step := c.lost, c.step
	c.step = stepNone
	c.mu.Unlock()
	if c.of.answered != nil && n > 0 && step != stepNone {
		c.of.answered(step)
	}
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

// rig is a Kafka with a target topic, and a database.
type rig struct {
	*testing.T
	db     *database
	seed   string // or several, with commas
	target string
	o      kafkaoutbox.Options
	client []kgo.Opt // of the box; nil: the seed

	mu      sync.Mutex
	running []*running
	events  []outbox.Event
	added   map[string][]int // by key, in order
	n       int
}

type running struct {
	*claim
	done chan struct{}
}

// onKfake returns the address of a Kafka in memory.
func onKfake(t *testing.T, opts ...kfake.Opt) string {
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

func newRig(t *testing.T, seed string) *rig {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", " ", "_", ",", "", ":", "", "'", "").Replace(t.Name()))
	name = name[max(0, len(name)-150):] + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	r := &rig{T: t, db: batchestest.NewDatabase("PRODUCE"), seed: seed, target: "target-" + name, added: map[string][]int{}}
	r.o = kafkaoutbox.Options{
		Positions: "positions-" + name, Prefix: name, Batch: 3, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, RequestTimeout: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	if testing.Verbose() && os.Getenv("KAFKAOUTBOX_LOG") != "" {
		r.o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	r.createTopics(2, nil, r.target)
	r.createTopics(1, nil, r.o.Positions)
	t.Cleanup(func() {
		for _, run := range r.all() {
			r.stop(run)
		}
	})
	return r
}

func (r *rig) seeds() []string { return strings.Split(r.seed, ",") }

func (r *rig) all() []*running {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.running)
}

func (r *rig) admin() *kadm.Client {
	r.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.seeds()...))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

func (r *rig) createTopics(partitions int32, configs map[string]*string, topics ...string) {
	r.Helper()
	resp, err := r.admin().CreateTopics(context.WithoutCancel(r.Context()), partitions, int16(len(r.seeds())), configs, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		r.Fatal(err)
	}
}

// box returns a box of a process.
func (r *rig) box(p *process) *kafkaoutbox.Box[*tx] {
	r.Helper()
	o := r.o
	o.Client = append(slices.Clone(r.client), kgo.Dialer(p.dial))
	if r.client == nil {
		o.Client = append(o.Client, kgo.SeedBrokers(r.seeds()...))
	}
	o.Observe = func(e outbox.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
	box, err := kafkaoutbox.New(table{}, o)
	if err != nil {
		r.Fatal(err)
	}
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

// add adds records with these keys in one transaction; "-" is none. Their values are numbers that rise.
func (r *rig) add(keys ...string) {
	r.Helper()
	r.addTo(r.target, keys...)
}

func (r *rig) addTo(topic string, keys ...string) {
	r.Helper()
	box := r.box(&process{})
	err := r.db.Do(0, func(t *tx) error {
		for _, key := range keys {
			record := kafkaoutbox.Record{Topic: topic, Key: []byte(key), Value: []byte(strconv.Itoa(r.n))}
			if key == "-" {
				record.Key = nil
			}
			if topic == r.target {
				r.added[key] = append(r.added[key], r.n)
			}
			r.n++
			if err := box.Add(r.Context(), t, epoch.Message{Partition: orders, Offset: 7}, record); err != nil {
				return err
			}
		}
		return nil
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

// read returns what a read_committed reader of the target finds, by key.
func (r *rig) read(topic string) map[string][]int {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	admin, want := r.admin(), map[int32]int64{}
	r.await("the end of all transactions", func() bool { // EndTxn is answered before readers see the records
		stable, err := admin.ListCommittedOffsets(ctx, topic)
		ends, err2 := admin.ListEndOffsets(ctx, topic)
		if err := errors.Join(err, err2, stable.Error(), ends.Error()); err != nil {
			r.Fatal(err)
		}
		open := false
		ends.Each(func(o kadm.ListedOffset) {
			if s, _ := stable.Lookup(topic, o.Partition); s.Offset < o.Offset {
				open = true
			}
			if o.Offset > 0 {
				want[o.Partition] = o.Offset
			}
		})
		return !open
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.seeds()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	found := map[string][]int{}
	for len(want) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			r.Fatalf("the reader did not reach the end of %v", want)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if rec.Offset+1 >= want[rec.Partition] {
				delete(want, rec.Partition)
			}
			if rec.Attrs.IsControl() {
				return
			}
			key := string(rec.Key)
			if rec.Key == nil {
				key = "-"
			}
			n, err := strconv.Atoi(string(rec.Value))
			if err != nil {
				r.Errorf("read %q", rec.Value)
			}
			found[key] = append(found[key], n)
		})
	}
	return found
}

// wantAll checks that the target has what was added, once and in the order of each key.
func (r *rig) wantAll() {
	r.Helper()
	found := r.read(r.target)
	for key, want := range r.added {
		got := found[key]
		if key == "-" {
			slices.Sort(got)
		}
		if !slices.Equal(got, want) {
			r.Errorf("key %s: a read_committed reader has %v, want %v", key, got, want)
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
