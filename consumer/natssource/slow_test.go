package natssource

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// slowly is one process that consumes a stream over a slow link.
type slowly struct {
	server     *natstest.Server
	rate       int // bytes a second; 0: as fast as it goes
	roundTrip  time.Duration
	partitions int
	ttl        time.Duration // 0: the default
	logger     *slog.Logger
	sizes      []int // of the messages, which the partitions get one after the other
	burst      bool  // they are published when all partitions have been claimed, and not before
}

// outcome is what became of it.
type outcome struct {
	ttl, took   time.Duration
	stalled     time.Duration // the longest time in which the machine did nothing for the test
	fetched     int           // bytes
	bytes       int           // of the messages
	claims      int
	lost        []error
	refused     []error // claims
	disconnects int
}

// consume returns when each message was applied once, or when there was no time left.
func (w slowly) consume(t *testing.T, limit time.Duration) (o outcome) {
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	own := w.server.JetStream(t)
	stream := Stream{Name: "orders"}
	for n := range w.partitions {
		stream.Filters = append(stream.Filters, fmt.Sprintf("orders.%d", n))
	}
	must(t, second(own.CreateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}})))
	for _, size := range w.sizes {
		o.bytes += size
	}
	publish := func() {
		for i, size := range w.sizes {
			must(t, second(own.PublishAsync(fmt.Sprintf("orders.%d", i%w.partitions), make([]byte, size))))
		}
		<-own.PublishAsyncComplete()
	}
	if !w.burst {
		publish()
	}
	wires := newLink()
	wires.Limit(w.rate)
	wires.Delay(w.roundTrip)
	js := wires.connect(t, w.server, nats.Timeout(20*time.Second))
	if w.logger == nil {
		w.logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	source, err := New(Options{Group: "billing", JetStream: js, Streams: []Stream{stream}, LeaseTTL: w.ttl, Logger: w.logger})
	must(t, err)
	var (
		mu       sync.Mutex
		bursting sync.WaitGroup
		applied  = map[epoch.Offset]int{}
	)
	running, stop := context.WithTimeout(ctx, limit)
	defer stop()
	handle := func(_ context.Context, _ *memsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range ms {
			applied[m.Offset]++
		}
		if len(applied) == len(w.sizes) {
			stop()
		}
		return nil
	}
	observe := func(e consumer.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case consumer.Claimed:
			if o.claims++; w.burst && o.claims == w.partitions {
				bursting.Go(publish)
			}
		case consumer.NotClaimed:
			o.refused = append(o.refused, e.Err)
		case consumer.Lost:
			if running.Err() == nil {
				o.lost = append(o.lost, e.Cause)
			}
		}
	}
	o.ttl = source.LeaseTTL
	pulse := pulsetest.Start(t, func(ctx context.Context) error { return second(own.AccountInfo(ctx)) })
	before, began := js.Conn().Stats(), time.Now()
	err = consumer.Run(running, source, memsink.New(), consumer.Batches(handle), consumer.Options{Logger: w.logger, Observe: observe})
	o.took = time.Since(began)
	bursting.Wait()
	must(t, err)
	after := js.Conn().Stats()
	o.fetched, o.disconnects = int(after.InBytes-before.InBytes), int(after.Reconnects-before.Reconnects)
	for at, times := range applied {
		if times != 1 {
			t.Errorf("message %d was applied %d times", at, times)
		}
	}
	t.Logf("%d of %d messages, %d bytes, in %v; %d bytes were fetched, %d partitions claimed, %d lost, connected again %d times",
		len(applied), len(w.sizes), o.bytes, o.took.Round(time.Millisecond), o.fetched, o.claims, len(o.lost), o.disconnects)
	if len(applied) != len(w.sizes) {
		t.Errorf("%d of %d messages were applied within %v", len(applied), len(w.sizes), limit)
	}
	if o.stalled = pulse.Stalled(); len(o.lost) > 0 && o.stalled < o.ttl/4 {
		t.Errorf("%d partitions were lost, the first one: %v", len(o.lost), o.lost[0])
	}
	return o
}

// sized returns so many sizes of messages.
func sized(messages, bytes int) []int {
	var sizes []int
	for range messages {
		sizes = append(sizes, bytes)
	}
	return sizes
}

// atTheRate checks that the link carried what was consumed, and nothing for nothing, in less than so many times
// the time that it needs for that.
func (o outcome) atTheRate(t *testing.T, rate int, times float64) {
	t.Helper()
	if needs := float64(o.bytes) / float64(rate); o.took.Seconds() > times*needs+2 {
		t.Errorf("it took %v, and the link could have carried it in %.1f s", o.took, needs)
	}
	most := o.bytes + o.bytes/5
	if o.stalled > lookEvery/16 { // meanwhile a message may have been taken for one that does not come, and asked for once more
		most += o.bytes / 3
	}
	if o.fetched > most {
		t.Errorf("%d bytes were fetched for %d", o.fetched, o.bytes)
	}
}

func TestASlowLinkCostsNoLeaseAndCarriesEachMessageOnce(t *testing.T) {
	t.Parallel()
	const rate = 500_000
	slowly{server: natstest.Start(t), rate: rate, partitions: 4, ttl: 5 * time.Second, sizes: sized(40, 100_000)}.consume(t, time.Minute).atTheRate(t, rate, 3)
}

func TestABurstOverASlowLinkCostsNoLease(t *testing.T) {
	t.Parallel()
	const rate = 500_000
	slowly{server: natstest.Start(t), rate: rate, partitions: 4, ttl: 5 * time.Second, sizes: sized(40, 100_000), burst: true}.consume(t, time.Minute).atTheRate(t, rate, 3)
}

// TestSlowLink is the same with all defaults. `make long WHAT=balance` runs it.
func TestSlowLink(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes a minute; make long WHAT=balance runs it")
	}
	t.Parallel()
	const rate = 500_000
	for _, partitions := range []int{1, 12, 64} {
		t.Run(fmt.Sprint("partitions ", partitions), func(t *testing.T) {
			t.Parallel()
			slowly{server: natstest.Start(t), rate: rate, partitions: partitions, sizes: sized(204, 100_000)}.consume(t, 190*time.Second).atTheRate(t, rate, 1.25)
		})
	}
}

// Each request has its own time: several of them do not share one.
func TestAServerThatIsFarAwayIsReachedAndItsPartitionsAreClaimedAtOnce(t *testing.T) {
	t.Parallel()
	roundTrip := time.Second
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		roundTrip += 500 * time.Millisecond // the start takes longer still
	}
	o := slowly{server: natstest.Start(t), roundTrip: roundTrip, partitions: 2, sizes: sized(10, 100)}.consume(t, time.Minute)
	for _, err := range o.refused {
		if o.stalled < o.ttl/4 {
			t.Errorf("not claimed: %v", err)
		}
	}
}

func TestAServerThatDropsSlowConsumersCostsNoLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		configure natstest.Configure
		rate      int
		sizes     []int
		drops     int // until it is known what the server bears
	}{
		{"write_deadline", func(o *server.Options) { o.WriteDeadline = 2 * time.Second }, 500_000, sized(40, 100_000), 0},
		{"max_pending", func(o *server.Options) { o.MaxPending = 4 << 20 }, 20_000_000, sized(400, 100_000), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := slowly{server: natstest.Start(t, c.configure), rate: c.rate, partitions: 4, ttl: 5 * time.Second, sizes: c.sizes}.consume(t, time.Minute)
			if o.disconnects > c.drops && o.stalled < time.Second { // a stall is no slow link, and adds to one
				t.Errorf("the connection was dropped %d times, want %d at most", o.disconnects, c.drops)
			}
		})
	}
}

func TestAMessageLargerThanWhatMayBeInFlightComesOverASlowLink(t *testing.T) {
	t.Parallel()
	const rate = 500_000
	sizes := []int{600_000, 100, 600_000, 600_000, 100, 100, 600_000}
	slowly{server: natstest.Start(t), rate: rate, partitions: 2, ttl: 8 * time.Second, sizes: sizes}.consume(t, time.Minute).atTheRate(t, rate, 3)
}

func TestAMessageThatTheLinkCannotCarryWithinTheLeaseIsSaid(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 2*time.Second)
	said := make(lines, 1000)
	r.logger = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelError}))
	must(t, second(r.js.Publish(inTime(t), "orders.0", make([]byte, 100))))
	must(t, second(r.js.Publish(inTime(t), "orders.0", make([]byte, 900_000))))
	start := make(chan struct{})
	var lost atomic.Int32
	a := r.startWith("a", func(g *grant) {
		<-start
		f := g.fence(1)
		if second(g.Confirm(g.ctx, f)) == nil {
			for _, err := range g.Read(g.ctx, f) {
				if err != nil {
					break
				}
			}
		}
		if g.ctx.Err() != nil {
			lost.Add(1)
		}
	})
	a.wires.Limit(150_000)
	close(start)
	want := []string{"half of LeaseTTL", "stream=orders partition=0 from=2", "LeaseTTL=2s"}
	line := ""
	for !strings.Contains(line, want[0]) {
		select {
		case line = <-said:
		case <-time.After(patience):
			t.Fatal("nothing is said")
		}
	}
	for _, part := range want {
		if !strings.Contains(line, part) {
			t.Errorf("%q is not in %s", part, line)
		}
	}
	// It is said once, however often the partition is lost for it.
	eventually(t, "the partition is lost twice more", func() bool { return lost.Load() > 2 })
	a.wires.Limit(0)
	for range len(said) {
		if line := <-said; strings.Contains(line, want[0]) {
			t.Errorf("said again: %s", line)
		}
	}
}
