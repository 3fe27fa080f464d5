package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
)

const (
	group = "billing"
	topic = "orders"

	// patience is how long a test waits for what has to happen.
	patience = 60 * time.Second
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newCluster starts a broker on a loopback port.
func newCluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func reach(c *kfake.Cluster) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.RetryBackoffFn(soon)}
}

// soon spares tests the wait of up to a second between two attempts.
func soon(int) time.Duration { return 50 * time.Millisecond }

// produce sends records to partition 0, and fails the test unless all arrive.
func produce(t testing.TB, client []kgo.Opt, records ...*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(append(slices.Clone(client), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(20<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// numbered are n records whose values count on from first.
func numbered(topic string, first, n int) []*kgo.Record {
	var rs []*kgo.Record
	for i := range n {
		rs = append(rs, &kgo.Record{Topic: topic, Value: fmt.Append(nil, first+i)})
	}
	return rs
}

func counted(n int) []string {
	var vs []string
	for i := range n {
		vs = append(vs, fmt.Sprint(i))
	}
	return vs
}

func newSource(t testing.TB, with func(*kafkasource.Options)) *kafkasource.Source {
	t.Helper()
	o := kafkasource.Options{Group: group, Topics: []string{topic}, Logger: quiet()}
	with(&o)
	s, err := kafkasource.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func from(client []kgo.Opt) func(*kafkasource.Options) {
	return func(o *kafkasource.Options) { o.Client = client }
}

// running is one consumer.Run.
type running struct {
	testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed

	mu      sync.Mutex
	events  []consumer.Event
	changed chan struct{}
}

// start runs a consumer until it is stopped or t ends. It waits little between
// attempts.
func start[TX any](t testing.TB, source consumer.Source, sink epoch.Sink[TX], h consumer.Handlers[TX], with ...func(*consumer.Options)) *running {
	t.Helper()
	r := &running{TB: t, done: make(chan struct{}), changed: make(chan struct{})}
	o := consumer.Options{
		Logger: quiet(), Observe: r.observe,
		RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		HaltMin: 50 * time.Millisecond, HaltMax: 200 * time.Millisecond, MaxAttempts: 3,
	}
	for _, w := range with {
		w(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = consumer.Run(ctx, source, sink, h, o)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		if t.Failed() {
			t.Logf("Run returned %v; its events were", r.err)
			for _, e := range r.seen() {
				t.Logf("  %T%+v", e, e)
			}
		}
	})
	return r
}

func (r *running) observe(e consumer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *running) seen() []consumer.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// until waits until holds does, which is asked again after each event.
func (r *running) until(what string, holds func(events []consumer.Event) bool) {
	r.Helper()
	limit := time.After(patience)
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if holds(r.seen()) {
			return
		}
		select {
		case <-changed:
		case <-r.done:
			r.Fatalf("Run returned %v before %s", r.err, what)
		case <-limit:
			r.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

// advancedTo waits until the position of a partition is next.
func (r *running) advancedTo(p epoch.Partition, next epoch.Offset) {
	r.Helper()
	r.until(fmt.Sprintf("%s is at %d", p, next), func(es []consumer.Event) bool {
		return slices.ContainsFunc(es, func(e consumer.Event) bool {
			a, ok := e.(consumer.Advanced)
			return ok && a.Partition == p && a.To >= next
		})
	})
}

// reported waits until somebody has been told, within the time given, of an
// error that says all of words.
func (r *running) reported(within time.Duration, words ...string) {
	r.Helper()
	began := time.Now()
	r.until(fmt.Sprintf("an event says %q", words), func(es []consumer.Event) bool {
		return slices.ContainsFunc(es, func(e consumer.Event) bool {
			err := errorOf(e)
			return err != nil && says(err, words...)
		})
	})
	if took := time.Since(began); took > within {
		r.Errorf("it took %v to say %q, want up to %v", took, words, within)
	}
}

func errorOf(e consumer.Event) error {
	switch e := e.(type) {
	case consumer.Halted:
		return e.Err
	case consumer.Retried:
		return e.Err
	case consumer.InDoubt:
		return e.Err
	default:
		return nil
	}
}

// none fails the test if an event of type E was seen.
func none[E consumer.Event](r *running) {
	r.Helper()
	for _, e := range r.seen() {
		if e, ok := e.(E); ok {
			r.Errorf("%T%+v", e, e)
		}
	}
}

// stop ends it as SIGTERM would.
func (r *running) stop() {
	r.Helper()
	r.cancel()
	if err := r.ended(patience); err != nil {
		r.Fatalf("Run returned %v after a stop, want nil", err)
	}
}

func (r *running) ended(within time.Duration) error {
	r.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(within):
		r.Fatalf("Run did not return within %v", within)
		return nil
	}
}

// refused fails the test unless Run ends by itself within that time, with an
// error that says all of words.
func (r *running) refused(within time.Duration, words ...string) {
	r.Helper()
	wantError(r, r.ended(within), words...)
}

// wantError fails the test unless err says all of words.
func wantError(t testing.TB, err error, words ...string) {
	t.Helper()
	switch {
	case err == nil:
		t.Fatalf("no error; want one that says %q", words)
	case !says(err, words...):
		t.Errorf("the error %q does not say all of %q", err, words)
	default:
		t.Log(err)
	}
}

func says(err error, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) })
}

// within bounds a call that ought to fail soon.
func within(t testing.TB, d time.Duration, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*d)
	defer cancel()
	began := time.Now()
	err := f(ctx)
	if took := time.Since(began); took > d {
		t.Errorf("it took %v, want up to %v", took, d)
	}
	return err
}

var errCut = errors.New("network is unreachable")

// link is a network that can be cut.
type link struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, errCut
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		_ = c.Close()
		return nil, errCut
	}
	l.conns = append(l.conns, c)
	return c, nil
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func (l *link) fix() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

func part(group, topic string) epoch.Partition { return epoch.Partition{Group: group, Topic: topic} }
