package natssource

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// long skips what takes minutes unless it was asked for.
func long(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes long, and CI runs it; set EPOCHFENCE_LONG=1")
	}
}

type servers interface {
	JetStream(testing.TB, ...nats.Option) jetstream.JetStream
}

// outing is a cluster, or one server, with a stream, members that apply it to one database, and
// one publisher for each partition.
type outing struct {
	t       testing.TB
	ctx     context.Context
	servers servers
	cluster *natstest.Cluster // if it is one
	wires   []*link           // of the members
	js      jetstream.JetStream
	db      *memsink.Sink
	stop    context.CancelFunc // of the publishers
	done    sync.WaitGroup

	mu   sync.Mutex
	sent [outingPartitions][]string
}

const (
	outingStream     = "outing"
	outingBucket     = "outing-leases"
	outingPartitions = 4
	outingMembers    = 3
	outingTTL        = 3 * time.Second
)

// newOuting is one on three nodes.
func newOuting(t *testing.T, limit time.Duration) *outing {
	c := natstest.StartCluster(t, 3)
	o := newOutingOn(t, c, 3, limit)
	o.cluster = c
	return o
}

func newOutingOn(t *testing.T, s servers, replicas int, limit time.Duration) *outing {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	o := &outing{t: t, ctx: ctx, servers: s, db: memsink.New()}
	o.js = s.JetStream(t)
	insist(t, func(ctx context.Context) error {
		return second(o.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: outingStream, Subjects: []string{outingStream + ".*"}, Replicas: replicas, Duplicates: 2 * time.Minute,
		}))
	})
	for m := range outingMembers {
		o.member(m)
	}
	publishing, stop := context.WithCancel(ctx)
	o.stop = stop
	for n := range int32(outingPartitions) {
		o.done.Go(func() { o.publish(publishing, n) })
	}
	t.Cleanup(func() { stop(); o.done.Wait() })
	return o
}

func (o *outing) member(m int) {
	l := newLink()
	o.wires = append(o.wires, l)
	opts := Options{
		Group: "g", JetStream: l.connect(o.t, o.servers), Bucket: outingBucket, LeaseTTL: outingTTL,
		Name: fmt.Sprint("member", m), Logger: slog.New(slog.DiscardHandler),
		Streams: []Stream{{Name: outingStream}},
	}
	for n := range int32(outingPartitions) {
		opts.Streams[0].Filters = append(opts.Streams[0].Filters, subject(outingStream, n))
	}
	s, err := New(opts)
	must(o.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- consumer.Run(ctx, s, o.db.Open(), consumer.Each(func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			tx.Append(fmt.Sprint(m.Partition.Number), string(m.Value))
			return nil
		}), consumer.Options{Logger: slog.New(slog.DiscardHandler), RetryMax: time.Second, HaltMax: 2 * time.Second})
	}()
	o.t.Cleanup(func() {
		l.hold(false, false)
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				o.t.Errorf("member %d: Run has returned %v", m, err)
			}
		case <-time.After(30 * time.Second):
			o.t.Errorf("member %d: Run has not returned", m)
		}
	})
}

// publish numbers the messages of one partition. One whose fate is not known is
// sent again, and the stream knows it by its id.
func (o *outing) publish(ctx context.Context, n int32) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		value := fmt.Sprintf("%d-%d", n, i)
		for {
			once, cancel := context.WithTimeout(o.ctx, 2*time.Second)
			_, err := o.js.Publish(once, subject(outingStream, n), []byte(value), jetstream.WithMsgID(value))
			cancel()
			if err == nil {
				break
			}
			if o.ctx.Err() != nil {
				return
			}
		}
		o.mu.Lock()
		o.sent[n] = append(o.sent[n], value)
		o.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// progress waits until every partition has applied so many more messages.
func (o *outing) progress(what string, more int) {
	o.t.Helper()
	var from [outingPartitions]int
	for n := range from {
		from[n] = len(o.db.List(fmt.Sprint(n)))
	}
	begin := time.Now()
	o.until(what, func() bool {
		for n := range from {
			if len(o.db.List(fmt.Sprint(n))) < from[n]+more {
				return false
			}
		}
		return true
	})
	o.t.Logf("%s: %d more messages of each partition were applied after %v", what, more, time.Since(begin).Round(time.Millisecond))
}

func (o *outing) until(what string, cond func() bool) {
	o.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-o.ctx.Done():
			o.t.Fatalf("%s: did not happen in time", what)
		}
	}
}

// exact stops the publishers and compares what was applied with what was sent.
func (o *outing) exact() {
	o.t.Helper()
	o.stop()
	o.done.Wait()
	for n := range outingPartitions {
		list := fmt.Sprint(n)
		o.until("everything is applied", func() bool { return len(o.db.List(list)) >= len(o.sent[n]) })
		if got := o.db.List(list); !slices.Equal(got, o.sent[n]) {
			i := 0
			for i < min(len(got), len(o.sent[n])) && got[i] == o.sent[n][i] {
				i++
			}
			o.t.Errorf("partition %d: %d effects of %d messages; they differ from number %d on: %q, want %q",
				n, len(got), len(o.sent[n]), i, got[i:min(i+3, len(got))], o.sent[n][i:min(i+3, len(o.sent[n]))])
		}
	}
}

// whole waits as an operator does before the next node is stopped. A node that still lacks a part of a
// stream votes for nobody and catches up from the stream's leader, so it must not be one of two that are left.
func (o *outing) whole() {
	o.t.Helper()
	must(o.t, o.cluster.Await(o.ctx))
	for _, stream := range []string{outingStream, "KV_" + outingBucket} {
		must(o.t, o.cluster.AwaitStream(o.ctx, stream))
	}
}

func (o *outing) leader(stream string) int {
	n := -1
	o.until("stream "+stream+" has a leader", func() bool { n = o.cluster.Leader(stream); return n >= 0 })
	return n
}

func TestClusterLosesANodeAndEveryEffectIsAppliedOnceInOrder(t *testing.T) {
	t.Parallel()
	o := newOuting(t, 4*time.Minute)
	o.progress("all is well", 20)
	n := o.leader(outingStream)
	o.cluster.Cut(n)
	o.progress("the leader of the stream is cut off", 100)
	o.cluster.Heal(n)
	o.whole()
	o.progress("it is back", 20)
	o.exact()
}

func TestClusterNodesAreStoppedRestartedAndCutOffWhileMembersConsume(t *testing.T) {
	t.Parallel()
	long(t)
	o := newOuting(t, 8*time.Minute)
	o.progress("all is well", 20)
	for _, stream := range []string{outingStream, "KV_" + outingBucket} {
		for _, fault := range []struct {
			name    string
			do, fix func(n int)
		}{
			{"stopped", func(n int) { must(t, o.cluster.Stop(n)) }, func(n int) { must(t, o.cluster.Start(n)) }},
			{"cut off from all", o.cluster.Cut, o.cluster.Heal},
		} {
			n := o.leader(stream)
			fault.do(n)
			o.progress(fmt.Sprintf("the leader of %s is %s", stream, fault.name), 50)
			fault.fix(n)
			o.whole()
			o.progress("it is back", 50)
		}
		// Members and publishers that stay with it get nothing done, and members
		// lose what they have to others.
		n := o.leader(stream)
		o.cluster.Isolate(n)
		waits.Sleep(o.ctx, 8*time.Second)
		o.cluster.Heal(n)
		o.whole()
		o.progress(fmt.Sprintf("the leader of %s was cut off with its clients, and is back", stream), 50)
	}
	// All of them, one after the other, as in an upgrade.
	for n := range o.cluster.Nodes() {
		must(t, o.cluster.Stop(n))
		o.progress(fmt.Sprintf("node %d is stopped", n), 20)
		must(t, o.cluster.Start(n))
		o.whole()
	}
	// Two at once, so that nothing can be stored for a while.
	o.cluster.Cut(0)
	must(t, o.cluster.Stop(1))
	waits.Sleep(o.ctx, 5*time.Second)
	must(t, o.cluster.Start(1))
	o.cluster.Heal(0)
	o.whole()
	o.progress("most nodes were gone and are back", 50)
	o.exact()
}

func TestABucketRestoredUnderItsHoldersChangesNoEffect(t *testing.T) {
	t.Parallel()
	restoreUnderHolders(newOutingOn(t, natstest.Start(t), 1, 4*time.Minute))
}

func TestOnAClusterABucketRestoredUnderItsHoldersChangesNoEffect(t *testing.T) {
	t.Parallel()
	long(t)
	restoreUnderHolders(newOuting(t, 4*time.Minute))
}

// holder is the member that leases a partition.
func (o *outing) holder(n int32) (m int) {
	o.t.Helper()
	b := bucket{o.js, outingBucket}
	o.until(fmt.Sprintf("partition %d is leased", n), func() bool {
		e, err := b.get(o.ctx, "g.lease.resource."+outingStream+"."+strconv.Itoa(int(n)))
		if err != nil || !e.live {
			return false
		}
		_, err = fmt.Sscanf(parseRecord(o.t, e.value).Owner, "member%d", &m)
		return err == nil
	})
	return m
}

// restoreUnderHolders brings the bucket back to what it was: revisions are handed
// out again, and leases that have moved on are with those that had them, one of whom
// was cut off and believes to have what others have taken since.
func restoreUnderHolders(o *outing) {
	const bucket = "KV_" + outingBucket
	o.progress("all is well", 20)
	for round := range 3 {
		zombie := o.wires[o.holder(int32(round))]
		var saved *natstest.Backup
		insist(o.t, func(ctx context.Context) (err error) {
			saved, err = natstest.TakeBackup(ctx, o.js.Conn(), bucket)
			return err
		})
		zombie.hold(true, true)
		o.progress("a member is cut off", 20)
		o.until("the bucket is restored", func() bool { // before a member makes a new one
			once, cancel := context.WithTimeout(o.ctx, 5*time.Second)
			defer cancel()
			_ = o.js.DeleteStream(once, bucket)
			return saved.Restore(once, o.js.Conn()) == nil
		})
		zombie.hold(false, false)
		o.progress("the bucket was restored, and the member is back", 50)
		o.member(len(o.wires))
		o.progress("one more member has come", 20)
	}
	o.exact()
}
