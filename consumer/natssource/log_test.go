package natssource

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestAStreamThatCannotBeReadAsAskedIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for _, c := range []struct {
		name   string
		config jetstream.StreamConfig
		stream Stream
		want   error
		says   string
	}{
		{name: "missing", stream: Stream{Name: "nowhere"}, want: jetstream.ErrStreamNotFound, says: `stream "nowhere"`},
		{
			name: "work queue", config: jetstream.StreamConfig{Name: "wq", Subjects: []string{"wq"}, Retention: jetstream.WorkQueuePolicy},
			stream: Stream{Name: "wq"}, want: ErrRetention, says: "WorkQueue retention",
		},
		{
			name: "interest", config: jetstream.StreamConfig{Name: "in", Subjects: []string{"in"}, Retention: jetstream.InterestPolicy},
			stream: Stream{Name: "in"}, want: ErrRetention, says: "Interest retention",
		},
		{
			name: "a filter outside", config: jetstream.StreamConfig{Name: "a", Subjects: []string{"a.*"}},
			stream: Stream{Name: "a", Filters: []string{"a.x", "b.x"}}, says: `"b.x"`,
		},
		{
			name: "consumers that are forgotten too soon",
			config: jetstream.StreamConfig{
				Name: "soon", Subjects: []string{"soon"}, ConsumerLimits: jetstream.StreamConsumerLimits{InactiveThreshold: time.Second},
			},
			stream: Stream{Name: "soon"}, says: "an InactiveThreshold of 5s or more",
		},
		{
			name: "fewer consumers than partitions", config: jetstream.StreamConfig{Name: "few", Subjects: []string{"few.*"}, MaxConsumers: 1},
			stream: Stream{Name: "few", Filters: []string{"few.0", "few.1"}}, says: "MaxConsumers of at least 4 plus",
		},
		{
			name: "no consumers to spare", config: jetstream.StreamConfig{Name: "bare", Subjects: []string{"bare.*"}, MaxConsumers: 3},
			stream: Stream{Name: "bare", Filters: []string{"bare.0", "bare.1"}}, says: "MaxConsumers of at least 4 plus",
		},
		{name: "filters that overlap", stream: Stream{Name: "a", Filters: []string{"a.x", "a.*"}}, says: "in two partitions"},
		{name: "no transform", stream: Stream{Name: "a", Transform: &Transform{"a.*", "a.{{partition(2,1)}}"}}, says: "has no subject transform"},
		{name: "a transform without partitions", stream: Stream{Name: "a", Transform: &Transform{"a.*", "a.x"}}, says: "no {{partition"},
		{
			name: "another transform",
			config: jetstream.StreamConfig{
				Name: "t", Subjects: []string{"t.*"},
				SubjectTransform: &jetstream.SubjectTransformConfig{Source: "t.*", Destination: "t.{{partition(3,1)}}"},
			},
			stream: Stream{Name: "t", Transform: &Transform{"t.*", "t.{{partition(2,1)}}"}}, says: `to "t.{{partition(3,1)}}", want one from "t.*" to "t.{{partition(2,1)}}"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.config.Name != "" {
				must(t, second(js.CreateStream(inTime(t), c.config)))
			}
			_, err := openLog(inTime(t), Options{Group: "g", JetStream: js, BufferBytes: leastBuffer, Logger: slog.New(slog.DiscardHandler)}, c.stream, newFlight(0, func() uint64 { return 0 }))
			if err == nil || !strings.Contains(err.Error(), c.says) || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("openLog = %v; want %v, and that it says %q", err, c.want, c.says)
			}
		})
	}
}

// The readers of a member that was killed leave their consumers behind.
func TestAStreamWhoseLimitsSufficeIsRead(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) {
		c.MaxConsumers = 6
		c.ConsumerLimits = jetstream.StreamConsumerLimits{InactiveThreshold: soonForgotten, MaxAckPending: 1}
	})
	r.publish(0, "a", "b", "c")
	for n := range int32(6) { // of each of three partitions two
		rd := r.reader(n%3, 1, -1)
		must(t, rd.open(r.ctx))
		t.Cleanup(rd.discard)
	}
	err := r.reader(0, 1, -1).open(r.ctx)
	if !jsapi.HasCode(err, jetstream.JSErrCodeMaximumConsumersLimit) || !strings.Contains(err.Error(), "those of members that were killed go after 5s") {
		t.Errorf("one more: %v", err)
	}
}

func TestPartitionsAreOfTheStreamTheTransformOrTheFilters(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	must(t, second(js.CreateStream(inTime(t), jetstream.StreamConfig{
		Name: "s", Subjects: []string{"s.*"},
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: "s.*", Destination: "s.{{partition(3,1)}}.{{wildcard(1)}}"},
	})))
	ids := map[string]bool{}
	for _, c := range []struct {
		stream Stream
		want   int32
	}{
		{Stream{Name: "s"}, 1},
		{Stream{Name: "s", Transform: &Transform{"s.*", "s.{{partition(3,1)}}.{{wildcard(1)}}"}}, 3},
		{Stream{Name: "s", Filters: []string{"s.0.*", "s.1.>"}}, 2}, // only what the transform makes
	} {
		l, err := openLog(inTime(t), Options{Group: "g", JetStream: js, BufferBytes: leastBuffer}, c.stream, newFlight(0, func() uint64 { return 0 }))
		must(t, err)
		if l.partitions() != c.want {
			t.Errorf("%+v has %d partitions, want %d", c.stream, l.partitions(), c.want)
		}
		for n := range l.partitions() {
			id := l.logID(l.incarnation(), n)
			if ids[id] {
				t.Errorf("two logs are called %q", id)
			}
			ids[id] = true
			if id == l.logID(incarnation{l.incarnation().created + 1}, n) {
				t.Errorf("a recreated stream is called %q, too", id)
			}
		}
	}
}

func TestPartitionsStartWhereThePolicySays(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	starts := func(policy consumer.StartPolicy, want [2]epoch.Offset) {
		t.Helper()
		got, err := r.log.starts(r.ctx, r.log.incarnation(), r.origin, policy)
		must(t, err)
		if len(got) != 3 {
			t.Fatalf("%v: %d partitions, want 3", policy, len(got))
		}
		for n, s := range got {
			if s.Origin != r.origin(int32(n)) || s.Next.Offset != want[0] || s.Earliest.Offset != want[1] {
				t.Errorf("%v: partition %d starts at %d, earliest %d; want %v", policy, n, s.Next, s.Earliest, want)
			}
		}
	}
	starts(consumer.StartEarliest, [2]epoch.Offset{1, 1})
	starts(consumer.StartLatest, [2]epoch.Offset{1, 1})
	r.publish(0, numbered(0, 10)...)
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(4)))
	starts(consumer.StartEarliest, [2]epoch.Offset{4, 4})
	starts(consumer.StartLatest, [2]epoch.Offset{11, 4})
	starts(consumer.StartCommitted, [2]epoch.Offset{4, 4})
}

func TestAnAnswerIsSharedByThoseWhoAskedBeforeItWasAskedFor(t *testing.T) {
	t.Parallel()
	bubble.Test(t, testSharedAnswers)
}

func testSharedAnswers(t *testing.T) {
	var asked atomic.Int32
	asking, answer := make(chan int32), make(chan struct{})
	q := &inquiry[*jetstream.StreamInfo]{ask: func(context.Context) (*jetstream.StreamInfo, error) {
		n := asked.Add(1)
		asking <- n
		<-answer
		return &jetstream.StreamInfo{Created: time.Unix(int64(n), 0)}, nil
	}}
	var all sync.WaitGroup
	get := func(want int64) {
		all.Go(func() {
			info, err := q.answer(t.Context())
			if err != nil || info.Created.Unix() != want {
				t.Errorf("the answer is to request %v, want %d (%v)", info, want, err)
			}
		})
	}
	get(1)
	<-asking
	for range 10 {
		get(2)
	}
	synctest.Wait() // until all of them do
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.answer(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("one who does not wait: %v", err)
	}
	answer <- struct{}{}
	<-asking
	answer <- struct{}{}
	all.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}
