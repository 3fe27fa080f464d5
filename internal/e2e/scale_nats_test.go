package e2e_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// natsIdle is what docs/performance.md says of the messages between a group that is idle and its
// servers, in a second: what members send, and what they get. It is the one place to change
// with the way leases are kept.
func natsIdle(partitions, members int, ttl time.Duration) (in, out expectation) {
	p, n, often := float64(partitions), float64(members), 0.9*ttl.Seconds() // jitter takes a tenth off it on average
	renewals := n * 3 / often
	reads := n / (4 * often) // of all leases and registrations of the group
	requests := n + p/60 + n/ttl.Seconds() + 2*reads
	var signs float64 // of the watch: questions to up to three others and to the process itself, and their answers
	if n > 1 {
		signs = 2 * 5 * n * (1 + min(n-1, 3))
	}
	return expectation{"messages in", renewals + requests + signs, "N·3/(0.9 TTL) + N/s + P/60 + N/TTL + 2N/(3.6 TTL) + 40N/s"},
		expectation{"messages out", renewals*(1+n) + (p+n)*reads + requests + signs, "the same, renewals to N watchers, (P+N)·N/(3.6 TTL)"}
}

// TestScaleNATS counts the messages of an idle group at the server, and what there is of it
// in memory there and here.
func TestScaleNATS(t *testing.T) {
	t.Parallel()
	partitions, members := *scaleNATS, *scaleMembers
	server := natstest.Start(t)
	js := server.JetStream(t)
	stream := natssource.Stream{Name: topic}
	for i := range partitions {
		stream.Filters = append(stream.Filters, topic+"."+strconv.Itoa(i))
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}}); err != nil {
		t.Fatal(err)
	}
	ttl := *scaleTTL
	title := fmt.Sprintf("%d partitions, %d members on NATS", partitions, members)
	var (
		mu      sync.Mutex
		holders = map[epoch.Partition]int{}
		changed = make(chan struct{}, 1)
		running sync.WaitGroup
	)
	connections := make([]jetstream.JetStream, members)
	for i := range connections {
		connections[i] = server.JetStream(t)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); running.Wait() }) // before the connections are closed
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	began := time.Now()
	for member := range members {
		source, err := natssource.New(natssource.Options{Group: group, JetStream: connections[member], Streams: []natssource.Stream{stream}, LeaseTTL: ttl, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		observe := func(e consumer.Event) {
			if e, ok := e.(consumer.Claimed); ok {
				mu.Lock()
				holders[e.Fence.Partition] = member
				mu.Unlock()
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
		running.Go(func() {
			handle := func(context.Context, *memsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
			if err := consumer.Run(ctx, source, memsink.New(), consumer.Batches(handle), consumer.Options{Logger: quiet(), Observe: observe}); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	limit := time.After(5 * time.Minute)
	for shared := false; !shared; {
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("5 minutes have passed before all partitions were shared out")
		}
		mu.Lock()
		loads := make([]int, members)
		for _, m := range holders {
			loads[m]++
		}
		shared = len(holders) == partitions
		for _, n := range loads {
			shared = shared && n >= partitions/members
		}
		mu.Unlock()
	}
	t.Logf("%s: shared out in %v", title, time.Since(began).Round(time.Millisecond))
	<-time.After(ttl) // the last to join have read the bucket

	varz := func() (in, out int64) {
		v, err := server.Embedded().Varz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return v.InMsgs, v.OutMsgs
	}
	in, out := varz()
	since := time.Now()
	<-time.After(4 * ttl)
	in2, out2 := varz()
	idle := time.Since(since)
	runtime.GC()
	runtime.ReadMemStats(&after)
	wantIn, wantOut := natsIdle(partitions, members, ttl)
	holds(t, title+": a second while nobody publishes", map[string]int{"messages in": int(in2 - in), "messages out": int(out2 - out)}, idle, wantIn, wantOut)
	p := float64(partitions)
	t.Logf("%s: for each partition %.1f goroutines and %.0f kB of heap, those of the server with them", title,
		float64(runtime.NumGoroutine()-goroutines)/p, (float64(after.HeapAlloc)-float64(before.HeapAlloc))/1024/p)
	for began := time.Now(); ; <-time.After(100 * time.Millisecond) { // a reader's last one goes in the background
		info, err := js.Stream(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		n := info.CachedInfo().State.Consumers
		if n == partitions {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the stream has %d consumers, want one for each of %d partitions", n, partitions)
		}
	}
}
