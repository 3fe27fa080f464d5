package natssource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/waits"
)

// logRig is one stream with its log, without leases.
type logRig struct {
	t   testing.TB
	ctx context.Context
	js  jetstream.JetStream // the test's own
	log *streamLog
	Stream
}

const rigGroup = "group"

// newLogRig makes a stream with three partitions, log.0 to log.2, and opens it
// through js.
func newLogRig(t testing.TB, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) *logRig {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	r := &logRig{t: t, ctx: ctx, js: js, Stream: Stream{Name: "log", Filters: []string{"log.0", "log.1", "log.2"}}}
	r.create(change...)
	r.log = r.open(js)
	return r
}

func (r *logRig) create(change ...func(*jetstream.StreamConfig)) jetstream.StreamConfig {
	c := jetstream.StreamConfig{Name: r.Name, Subjects: []string{"log.*"}}
	for _, f := range change {
		f(&c)
	}
	must(r.t, second(r.js.CreateStream(r.ctx, c)))
	return c
}

func (r *logRig) open(js jetstream.JetStream) *streamLog {
	l, err := openLog(r.ctx, Options{Group: rigGroup, JetStream: js, BufferBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)}, r.Stream, newFlight(0, func() uint64 { return js.Conn().Stats().Reconnects }))
	must(r.t, err)
	l.skipEvery = 200 * time.Millisecond
	return l
}

// publish returns the sequence of the last one.
func (r *logRig) publish(n int, values ...string) uint64 {
	var last uint64
	for _, v := range values {
		ack, err := r.js.Publish(r.ctx, "log."+strconv.Itoa(n), []byte(v))
		must(r.t, err)
		last = ack.Sequence
	}
	return last
}

// publishAgain publishes once the server is back.
func (r *logRig) publishAgain(n int, values ...string) {
	poll(r.t, "the server is back", func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, time.Second) // a request may be lost with the connection
		defer cancel()
		return second(r.js.Stream(ctx, r.Name)) == nil
	})
	r.publish(n, values...)
}

func (r *logRig) stream() jetstream.Stream {
	s, err := r.js.Stream(r.ctx, r.Name)
	must(r.t, err)
	return s
}

func (r *logRig) partition(n int32) epoch.Partition {
	return epoch.Partition{Group: rigGroup, Topic: r.Name, Number: n}
}

// fence is one at next.
func (r *logRig) fence(n int32, next uint64) epoch.Fence {
	return epoch.Fence{
		Origin: epoch.Origin{Partition: r.partition(n), Log: r.log.logID(r.log.incarnation(), n)},
		Next:   epoch.Offset(next), Mark: epoch.NoMark, Applied: true,
	}
}

// reading is a Read under way.
type reading struct {
	t      testing.TB
	stop   context.CancelFunc
	ended  chan struct{}
	arrive chan struct{} // holds a token after something came

	mu     sync.Mutex
	ms     []consumer.Message
	ends   []epoch.Position // of the batches
	behind []int64          // how many messages the log had behind each of them
	err    error
}

func (r *logRig) read(from epoch.Fence) *reading { return r.readSlowly(from, nil) }

// readSlowly asks for a slice only when it can receive from hold.
func (r *logRig) readSlowly(from epoch.Fence, hold chan struct{}) *reading {
	ctx, cancel := context.WithCancel(r.ctx)
	g := &reading{t: r.t, stop: cancel, ended: make(chan struct{}), arrive: make(chan struct{}, 1)}
	in := r.log.incarnation()
	go func() {
		defer close(g.ended)
		for b, err := range r.log.read(ctx, in, from.Partition, &from) {
			g.mu.Lock()
			g.ms, g.ends, g.err = append(g.ms, b.Messages...), append(g.ends, epoch.Position{Offset: b.Next, Mark: b.Mark}), err
			g.behind = append(g.behind, int64(b.End-b.Next))
			g.mu.Unlock()
			waits.Notify(g.arrive)
			if hold != nil {
				select {
				case <-hold:
				case <-ctx.Done():
				}
			}
		}
	}()
	r.t.Cleanup(func() { cancel(); <-g.ended })
	return g
}

func (g *reading) all() []consumer.Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]consumer.Message(nil), g.ms...)
}

// await waits until cond is true of what has come.
func (g *reading) await(what string, cond func(ms []consumer.Message, err error) bool) {
	g.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		g.mu.Lock()
		ms, err := g.ms, g.err
		g.mu.Unlock()
		if cond(ms, err) {
			return
		}
		select {
		case <-g.arrive:
		case <-g.ended:
			g.mu.Lock()
			ms, err := g.ms, g.err
			g.mu.Unlock()
			if !cond(ms, err) {
				g.t.Fatalf("%s: Read has ended with %v after %v", what, g.err, show(g.ms))
			}
			return
		case <-limit:
			g.t.Fatalf("%s: not within 30 s; there are %v, %v", what, show(ms), err)
		}
	}
}

// values waits for so many messages of the log and compares them.
func (g *reading) values(want ...string) {
	g.t.Helper()
	g.await(fmt.Sprintf("messages %q", want), func(ms []consumer.Message, _ error) bool { return len(ms) >= len(want) })
	got := g.all()
	for i, m := range got {
		if i >= len(want) || string(m.Value) != want[i] {
			g.t.Fatalf("there are %v, want %q", show(got), want)
		}
	}
}

// fails waits for the error of the Read.
func (g *reading) fails() error {
	g.t.Helper()
	g.await("an error", func(_ []consumer.Message, err error) bool { return err != nil })
	return g.err
}

// passes waits for a position behind seq.
func (g *reading) passes(seq uint64) epoch.Position {
	g.t.Helper()
	var at epoch.Position
	g.await(fmt.Sprintf("a position behind %d", seq), func([]consumer.Message, error) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, end := range g.ends {
			if end.Offset > epoch.Offset(seq) {
				at = end
				return true
			}
		}
		return false
	})
	return at
}

func show(ms []consumer.Message) []string {
	var out []string
	for _, m := range ms {
		out = append(out, fmt.Sprintf("%d:%.20s", m.Offset, m.Value))
	}
	return out
}

func numbered(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

// poll waits until cond is true.
func poll(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func (r *logRig) origin(n int32) epoch.Origin { return r.fence(n, 0).Origin }

// backup copies what a server has on disk, and rollBack puts it in the place of
// what it has: the streams lose what came later, and are still the same.
func backup(t testing.TB, s *natstest.Server) (dir string) {
	dir = t.TempDir()
	must(t, s.Stop())
	must(t, os.CopyFS(dir, os.DirFS(s.Dir())))
	must(t, s.Start())
	return dir
}

func rollBack(t testing.TB, s *natstest.Server, dir string) {
	must(t, s.Stop())
	must(t, os.RemoveAll(s.Dir()))
	must(t, os.CopyFS(s.Dir(), os.DirFS(dir)))
	must(t, s.Start())
}

// insist makes a request that may be made again: one that reaches a cluster while
// it changes its leader is never answered.
func insist(t testing.TB, request func(ctx context.Context) error) {
	t.Helper()
	tries := 0
	eventually(t, "the request is answered", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		tries++
		err := request(ctx)
		if tries > 1 && (errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)) {
			return true // the first has deleted it
		}
		if refused := (*jetstream.APIError)(nil); errors.As(err, &refused) && !jsapi.Passing(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}
