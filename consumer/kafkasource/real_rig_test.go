package kafkasource_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// patience is how long a history waits for anything that has to happen.
const patience = 40 * time.Second

// session is short, so that the broker soon misses a frozen member.
const session = 2 * time.Second

// realHistory is a story on a real Apache Kafka: a topic, a group, a sink, and
// worker processes played by goroutines, each with clients of its own.
type realHistory struct {
	*testing.T
	from         consumer.StartPolicy // of its workers
	addr         string
	topic, group string
	client       *kgo.Client
	admin        *kadm.Client
	sink         *memsink.Sink
	sent         map[int32][]string

	mu      sync.Mutex
	changed chan struct{} // closed at the next event of any worker
}

func newRealHistory(t *testing.T, addr string, partitions int32) *realHistory {
	t.Helper()
	h := &realHistory{
		T: t, addr: addr, topic: unique("orders"), group: unique("billing"),
		sink: memsink.New(), sent: map[int32][]string{}, changed: make(chan struct{}),
	}
	h.connect()
	h.createTopic(partitions)
	return h
}

func (h *realHistory) connect() {
	h.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(h.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(client.Close)
	h.client, h.admin = client, kadm.NewClient(client)
}

var names struct {
	sync.Mutex
	used int
}

func unique(name string) string {
	names.Lock()
	defer names.Unlock()
	names.used++
	return fmt.Sprintf("%s-%d-%d", name, time.Now().UnixMilli(), names.used)
}

func (h *realHistory) createTopic(partitions int32) {
	h.Helper()
	createTopic(h, h.admin, h.topic, partitions)
}

func (h *realHistory) deleteTopic() {
	h.Helper()
	deleteTopic(h, h.admin, h.topic)
}

func createTopic(t testing.TB, admin *kadm.Client, topic string, partitions int32) {
	t.Helper()
	if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	awaitPartitions(t, admin, topic, int(partitions))
}

func deleteTopic(t testing.TB, admin *kadm.Client, topic string) {
	t.Helper()
	if _, err := admin.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	awaitPartitions(t, admin, topic, 0)
}

// awaitPartitions waits for the broker to know what the controller has answered: it hears of
// it a moment later, and tells clients what it knows.
func awaitPartitions(t testing.TB, admin *kadm.Client, topic string, n int) {
	t.Helper()
	poll(t, fmt.Sprintf("topic %s to have %d partitions", topic, n), func() bool {
		topics, err := admin.ListTopics(t.Context(), topic)
		return err == nil && len(topics[topic].Partitions) == n
	})
}

// send produces n messages to a partition, one batch each: 3/0, 3/1, … to
// partition 3.
func (h *realHistory) send(p int32, n int) {
	h.Helper()
	for range n {
		v := fmt.Sprintf("%d/%d", p, len(h.sent[p]))
		h.sendValue(p, v)
		h.sent[p] = append(h.sent[p], v)
	}
}

func (h *realHistory) sendValue(p int32, v string) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	if err := h.client.ProduceSync(ctx, &kgo.Record{Topic: h.topic, Partition: p, Value: []byte(v)}).FirstErr(); err != nil {
		h.Fatalf("produce %s: %v", v, err)
	}
}

// worker is one process with consumer.Run in it.
type worker struct {
	h      *realHistory
	name   string
	source *kafkasource.Source
	sink   *memsink.Sink
	link   *link
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run, once done is closed

	mu     sync.Mutex
	events []consumer.Event
}

// start starts a worker with further options of its Kafka clients.
func (h *realHistory) start(name string, opts ...kgo.Opt) *worker {
	h.Helper()
	return h.startWith(kafkasource.Options{}, name, opts...)
}

func (h *realHistory) startWith(o kafkasource.Options, name string, opts ...kgo.Opt) *worker {
	h.Helper()
	w := &worker{h: h, name: name, sink: h.sink.Open(), link: newLink(), done: make(chan struct{})}
	o.Group, o.Topics = h.group, []string{h.topic}
	o.Client = slices.Concat([]kgo.Opt{
		kgo.SeedBrokers(h.addr), kgo.ClientID(name), kgo.Dialer(w.link.dial),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 10), kgo.RebalanceTimeout(10 * time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
	}, opts)
	o.MirrorInterval = 100 * time.Millisecond
	o.Logger = slog.New(slog.DiscardHandler)
	source, err := kafkasource.New(o)
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.source, w.cancel = source, cancel
	go func() {
		defer close(w.done)
		w.err = consumer.Run(ctx, source, w.sink, consumer.Each(w.handle), consumer.Options{
			Start: h.from, Observe: w.observe, Logger: slog.New(slog.DiscardHandler),
			RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
			HaltMin: 100 * time.Millisecond, HaltMax: 500 * time.Millisecond,
			HangTimeout: patience, // what stands for a freeze is no hang
		})
		h.notify()
	}()
	h.Cleanup(func() {
		w.link.thaw()
		cancel()
		<-w.done
		if h.Failed() {
			h.Logf("worker %s: Run returned %v; its events were", name, w.err)
			for _, e := range w.seen() {
				if _, ok := e.(consumer.Advanced); !ok {
					h.Logf("  %T%+v", e, e)
				}
			}
		}
	})
	return w
}

// handle is the effect: the message's value at the end of its partition's list.
func (w *worker) handle(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	tx.Append(strconv.Itoa(int(m.Partition.Number)), string(m.Value))
	return nil
}

func (w *worker) observe(e consumer.Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	w.h.notify()
}

func (w *worker) seen() []consumer.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// stop ends the worker as SIGTERM would.
func (w *worker) stop() {
	w.h.Helper()
	w.cancel()
	if err := w.ended(); err != nil {
		w.h.Fatalf("%s: Run returned %v, want nil after a stop", w.name, err)
	}
}

// ended waits for Run to return and returns its error.
func (w *worker) ended() error {
	w.h.Helper()
	select {
	case <-w.done:
		return w.err
	case <-time.After(patience):
		w.h.Fatalf("%s: Run did not return in %v", w.name, patience)
		return nil
	}
}

func (h *realHistory) notify() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

// await waits until holds does, which is asked again after each event of any
// worker.
func (h *realHistory) await(what string, holds func() bool) {
	h.Helper()
	limit := time.After(patience)
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-limit:
			h.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// poll is await for what no worker notices.
func (h *realHistory) poll(what string, holds func() bool) {
	h.Helper()
	poll(h, what, holds)
}

func poll(t testing.TB, what string, holds func() bool) {
	t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	limit := time.After(patience)
	for !holds() {
		select {
		case <-look.C:
		case <-limit:
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// awaitApplied waits until every message that was sent is applied.
func (h *realHistory) awaitApplied() {
	h.Helper()
	h.await("every message to be applied", func() bool {
		for p, sent := range h.sent {
			if len(h.applied(p)) < len(sent) {
				return false
			}
		}
		return true
	})
}

func (h *realHistory) applied(p int32) []string { return h.sink.List(strconv.Itoa(int(p))) }

// wantExactlyOnce checks that every message was applied once, in order.
func (h *realHistory) wantExactlyOnce() {
	h.Helper()
	for p, sent := range h.sent {
		if got := h.applied(p); !slices.Equal(got, sent) {
			h.Errorf("partition %d: applied %v, want %v", p, got, sent)
		}
	}
}

func (h *realHistory) partition(p int32) epoch.Partition {
	return epoch.Partition{Group: h.group, Topic: h.topic, Number: p}
}

func (h *realHistory) fence(p int32) epoch.Fence { return h.sink.Fences()[h.partition(p)] }

// hold makes w's commits wait before the fence is checked, as if the process
// were frozen with its transaction open. The first to arrive closes held.
func (w *worker) hold() (held <-chan struct{}, release func()) {
	arrived, released := make(chan struct{}), make(chan struct{})
	arrive, open := sync.OnceFunc(func() { close(arrived) }), sync.OnceFunc(func() { close(released) })
	w.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		arrive()
		<-released
		return do()
	}})
	w.h.Cleanup(open)
	return arrived, open
}

// last waits for the newest event of type E of a worker, and returns it.
// Skip is how many of them are old news.
func last[E consumer.Event](w *worker, skip int) E {
	w.h.Helper()
	var found E
	w.h.await(fmt.Sprintf("%s to see %T number %d", w.name, found, skip+1), func() bool {
		es := all[E](w)
		if len(es) <= skip {
			return false
		}
		found = es[len(es)-1]
		return true
	})
	return found
}

// all returns the events of type E that a worker has seen.
func all[E consumer.Event](w *worker) []E {
	var es []E
	for _, e := range w.seen() {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}
