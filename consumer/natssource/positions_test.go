package natssource

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestContains(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{">", "a", true}, {">", ">", true}, {"a.>", "a.b", true}, {"a.>", "a.>", true}, {"a.*", "a.b", true}, {"a.*.c", "a.*.c", true},
		{"a.>", "a", false}, {"a.*", "a.>", false}, {"a.*", "a.b.c", false}, {"a.b", "a.*", false}, {"a", "b", false}, {"a.b.c", "a.b", false},
	} {
		if got := contains(c.a, c.b); got != c.want {
			t.Errorf("contains(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

func TestADurableConsumerThatDidTheWorkSaysHowFarItGot(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, numbered(0, 10)...)
	acked := func(want ...epoch.Offset) {
		t.Helper()
		for n, w := range want {
			if at, err := r.log.acked(r.ctx, r.log.incarnation(), int32(n)); err != nil || at != w {
				t.Errorf("partition %d: acknowledged up to %d, %v; want %d", n, at, err, w)
			}
		}
	}
	acknowledge := func(n int, filters ...string) {
		t.Helper()
		c, err := r.stream().CreateConsumer(r.ctx, jetstream.ConsumerConfig{Durable: rigGroup, AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: filters})
		must(t, err)
		batch, err := c.Fetch(n)
		must(t, err)
		for m := range batch.Messages() {
			must(t, m.DoubleAck(r.ctx))
		}
	}
	acked(0, 0, 0)
	acknowledge(2)
	acked(3, 3, 3)
	must(t, r.stream().DeleteConsumer(r.ctx, rigGroup))
	acknowledge(4, "log.0", "log.2")
	acked(5, 0, 5) // it was never to deliver what is in partition 1
	r.log.stream.Durable = rigGroup
	if at, err := r.log.acked(r.ctx, r.log.incarnation(), 1); err == nil || !strings.Contains(err.Error(), `was to deliver ["log.0" "log.2"] alone`) || !strings.Contains(err.Error(), `"log.1"`) || !errors.Is(err, consumer.ErrBlocked) {
		t.Errorf("a consumer that is named and was never to deliver what is in the partition: %d, %v", at, err)
	}
	acked(5)
	r.log.stream.Durable = "another"
	if _, err := r.log.acked(r.ctx, r.log.incarnation(), 0); !errors.Is(err, consumer.ErrBlocked) {
		t.Errorf("a consumer that is named and is not there: %v", err)
	}
}

// A group that starts at the latest message and has applied nothing: the stream loses
// its end, and grows beyond the position.
func TestAStreamThatWasCutBeforeTheFirstMessageWasAppliedIsTruncated(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	r := newLogRig(t, server.JetStream(t))
	r.publish(0, numbered(0, 5)...)
	old := backup(t, server)
	r.publishAgain(0, numbered(5, 8)...)
	starts, err := r.log.starts(r.ctx, r.log.incarnation(), r.origin, consumer.StartLatest)
	must(t, err)
	latest := epoch.Fence{Origin: starts[0].Origin, Next: starts[0].Next.Offset, Mark: starts[0].Next.Mark}
	mark, err := printOf(r.ctx, r.log.stored, 6)
	must(t, err)
	adopted := epoch.Fence{Origin: starts[0].Origin, Next: 7, Mark: mark, Applied: true}
	rollBack(t, server, old)
	wantMisfit(t, r.read(latest).fails(), consumer.ErrTruncated, 9, 6)
	r.publishAgain(0, numbered(100, 112)...)
	wantMisfit(t, r.read(latest).fails(), consumer.ErrTruncated, 9, 8)
	wantMisfit(t, r.read(adopted).fails(), consumer.ErrTruncated, 7, 6)
}

// A stream at its limit, under load: by the time a new group reads, its position has
// been passed. All of its partitions begin.
func TestANewGroupBeginsInAStreamAtItsLimitUnderLoad(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Storage = 20_000, jetstream.MemoryStorage })
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	var sent atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for n := range 300 {
				_, _ = js.PublishAsync(fmt.Sprintf("log.%d", n%3), []byte("x"))
			}
			select {
			case <-js.PublishAsyncComplete():
			case <-ctx.Done():
			}
			sent.Add(300)
		}
	}()
	defer func() { stop(); <-ended }()
	eventually(t, "the stream is at its limit", func() bool { return sent.Load() > 22_000 })
	starts, err := r.log.starts(r.ctx, r.log.incarnation(), r.origin, consumer.StartEarliest)
	must(t, err)
	before := sent.Load()
	eventually(t, "retention has passed where they were to begin", func() bool { return sent.Load() > before+2_000 })
	for _, s := range starts {
		reading, cancel := context.WithTimeout(r.ctx, patience)
		from := epoch.Fence{Origin: s.Origin, Next: s.Next.Offset, Mark: s.Next.Mark}
		got, next := 0, from.Next
		for b, err := range r.log.read(reading, r.log.incarnation(), s.Partition, &from) {
			var misfit *consumer.PositionError
			if errors.As(err, &misfit) && got == 0 {
				t.Fatalf("partition %d did not begin: %v", s.Partition.Number, err)
			}
			if err != nil {
				break // slower than retention, later on: which is known, and said
			}
			if len(b.Messages) > 0 && b.Messages[0].Offset < next {
				t.Fatalf("partition %d yields %d at position %d", s.Partition.Number, b.Messages[0].Offset, next)
			}
			next = b.Next
			if got += len(b.Messages); got > 1000 {
				break
			}
		}
		if cancel(); got == 0 {
			t.Errorf("partition %d did not begin", s.Partition.Number)
		}
		t.Logf("partition %d was to begin at %d, and %d messages were read up to %d", s.Partition.Number, s.Next.Offset, got, next)
	}
	t.Logf("%d messages in the meantime", sent.Load()-before)
}
