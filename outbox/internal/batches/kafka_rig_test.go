package batches_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

// The requests of a relay to Kafka, by their API keys.
const (
	stepInit     = 22
	stepFetch    = 9
	stepPosition = 28
	stepProduce  = 0
	stepEnd      = 26
	stepDescribe = 65
	stepNone     = -3
)

// kafkaSteps: a first position has a session of its own, so the third InitProducerId is that of the first batch.
var kafkaSteps = map[int]step{
	stepBegin: {"a transaction of the database", 3, 1}, stepCommitted: {"the end of a transaction of the database", 3, 1},
	stepInit: {"InitProducerId", 3, 0}, stepFetch: {"OffsetFetch", 3, 0}, // a successor comes there once, unless it is fenced
	stepPosition: {"TxnOffsetCommit", 3, 1}, stepProduce: {"Produce", 3, 1}, stepEnd: {"EndTxn", 3, 1},
}

// dialKafka returns connections that call p.at before each request.
func (p *process) dialKafka(ctx context.Context, network, address string) (net.Conn, error) {
	if p.killed() {
		return nil, errKilled
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &kafkaConn{Conn: c, of: p, step: stepNone}, nil
}

type kafkaConn struct {
	net.Conn
	of   *process
	mu   sync.Mutex
	lost bool
	step int // of the request without an answer
}

// Write gets one request: franz-go writes each with one call.
func (c *kafkaConn) Write(b []byte) (int, error) {
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
func (c *kafkaConn) Read(b []byte) (int, error) {
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

// kafkaRig is a rig on a Kafka with a target topic.
type kafkaRig struct {
	*rig
	seed   string // or several, with commas
	target string
	o      kafkaoutbox.Options
	client []kgo.Opt // of the box; nil: the seed
	admin  func() *kadm.Client
}

// startKfake starts a Kafka in memory. onKfake returns the address of one.
func startKfake(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func onKfake(t *testing.T, opts ...kfake.Opt) string { return startKfake(t, opts...).ListenAddrs()[0] }

func newKafkaRig(t *testing.T, seed string) *kafkaRig {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", " ", "_", ",", "", ":", "", "'", "").Replace(t.Name()))
	name = name[max(0, len(name)-150):] + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	r := &kafkaRig{rig: startRig(t, "PRODUCE", kafkaSteps), seed: seed, target: "target-" + name}
	r.admin = sync.OnceValue(func() *kadm.Client { // one for all polls: each has connections
		cl, err := kgo.NewClient(kgo.SeedBrokers(r.seeds()...))
		if err != nil {
			panic(err)
		}
		t.Cleanup(cl.Close)
		return kadm.NewClient(cl)
	})
	r.destination = r
	r.o = kafkaoutbox.Options{
		Positions: "positions-" + name, Prefix: name, Batch: 3, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, RequestTimeout: 10 * time.Second,
		Logger: logger(t),
	}
	r.createTopics(2, nil, r.target)
	r.createTopics(1, nil, r.o.Positions)
	return r
}

func (r *kafkaRig) seeds() []string { return strings.Split(r.seed, ",") }

func (r *kafkaRig) createTopics(partitions int32, configs map[string]*string, topics ...string) {
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
func (r *kafkaRig) box(p *process) *kafkaoutbox.Box[*tx] {
	r.Helper()
	o := r.o
	o.Client = append(slices.Clone(r.client), kgo.Dialer(p.dialKafka))
	if r.client == nil {
		o.Client = append(o.Client, kgo.SeedBrokers(r.seeds()...))
	}
	o.Observe = r.observe
	box, err := kafkaoutbox.New(table{}, o)
	if err != nil {
		r.Fatal(err)
	}
	return box
}

func (r *kafkaRig) relay(p *process) func(context.Context, consumer.Background[*tx]) {
	return r.box(p).Relay
}

// add adds records with these keys in one transaction; "-" is none. Their values are numbers that rise.
func (r *kafkaRig) add(keys ...string) {
	r.Helper()
	r.addTo(r.target, keys...)
}

func (r *kafkaRig) addTo(topic string, keys ...string) {
	r.Helper()
	box := r.box(&process{})
	r.commit(func(t *tx) error {
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
}

func (r *kafkaRig) found() map[string][]int { return r.read(r.target) }

// read returns what a read_committed reader of the target finds, by key.
func (r *kafkaRig) read(topic string) map[string][]int {
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
	slices.Sort(found["-"]) // they have no order
	return found
}
