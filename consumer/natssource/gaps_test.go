package natssource

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestDeletedMessagesAreExplainedGaps(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, numbered(0, 10)...)
	for _, seq := range []uint64{1 + 3, 1 + 4, 1 + 7} {
		must(t, r.stream().DeleteMsg(r.ctx, seq))
	}
	g := r.read(r.fence(0, 1))
	g.values("0", "1", "2", "5", "6", "8", "9")
	must(t, r.stream().DeleteMsg(r.ctx, 10))
	r.publish(0, "more")
	g.values("0", "1", "2", "5", "6", "8", "9", "more")
}

func TestAPositionBelowTheStreamsBeginningIsPassedBy(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, numbered(0, 10)...)
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(5)))
	r.log.skipEvery = time.Hour // it is not a matter of time
	wantMisfit(t, r.read(r.fence(0, 3)).fails(), consumer.ErrOffsetExpired, 3, 5)
	wantMisfit(t, r.read(r.fence(0, 0)).fails(), consumer.ErrOffsetExpired, 0, 5)
	r.read(r.fence(0, 5)).values("4", "5", "6", "7", "8", "9")
	must(t, r.stream().Purge(r.ctx))
	wantMisfit(t, r.read(r.fence(0, 7)).fails(), consumer.ErrOffsetExpired, 7, 11)
}

// Guard: verify. Without it the reader continues at the new beginning.
func TestABeginningThatMovesPastASlowPartitionIsNoticed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.budget = newBudget(1) // a window at a time
	big := strings.Repeat("x", 20_000)
	r.publish(0, big, big, big, big, big, big, big, big)
	hold := make(chan struct{})
	g := r.readSlowly(r.fence(0, 1), hold)
	g.values(big)
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(8)))
	close(hold)
	err := g.fails()
	got := len(g.all())
	wantMisfit(t, err, consumer.ErrOffsetExpired, uint64(got+1), 8)
	if got >= 7 {
		t.Errorf("%d messages were read ahead of a slow handler; the buffer holds one or two", got)
	}
}

// The messages had been read before the beginning passed them.
func TestWhatWasReadAheadIsNotPassedBy(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.skipEvery = time.Hour
	hold := make(chan struct{})
	r.publish(0, "a")
	g := r.readSlowly(r.fence(0, 1), hold)
	g.values("a")
	r.publish(1, "other")
	r.publish(0, "b")
	r.publish(1, "other")
	r.publish(0, "c")
	poll(t, "three messages are held, and the window that they came in", func() bool {
		r.log.budget.mu.Lock()
		defer r.log.budget.mu.Unlock()
		return r.log.budget.held > r.log.budget.limit/2+3*overhead
	})
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(6)))
	close(hold)
	r.publish(0, "d")
	g.values("a", "b", "c", "d")
}

// Guard: skip. Without it the position stays below the beginning.
func TestAQuietPartitionKeepsUpWithAStreamThatLosesItsBeginning(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs = 50 })
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for range 4 {
		last := r.publish(1, numbered(0, 30)...)
		if c := g.passes(last); c.Offset > epoch.Offset(last+1) {
			t.Fatalf("the position is %d, the stream ends at %d", c.Offset, last)
		}
	}
	r.publish(0, "b")
	g.values("a", "b")
	// From the fence that the last batch left, reading continues.
	c := g.passes(100)
	from := r.fence(0, uint64(c.Offset))
	from.Mark = c.Mark
	r.read(from).values("b")
	// Without it, it does not.
	if err := r.read(r.fence(0, 2)).fails(); !errors.Is(err, consumer.ErrOffsetExpired) {
		t.Errorf("a read from below the beginning: %v", err)
	}
}

// Its next message is far ahead, and a full buffer keeps it from being fetched.
// Guard: skip. Without it the beginning passes the partition by.
func TestASlowPartitionIsNotPassedByWhereTheStreamHeldNothingOfIt(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.budget = newBudget(1)
	big := strings.Repeat("x", 30_000)
	r.publish(0, big, big, big)
	r.publish(1, numbered(0, 50)...)
	next := r.publish(0, big)
	hold := make(chan struct{})
	g := r.readSlowly(r.fence(0, 1), hold)
	hold <- struct{}{}
	hold <- struct{}{}
	g.values(big, big, big)
	held := func() int {
		r.log.budget.mu.Lock()
		defer r.log.budget.mu.Unlock()
		return r.log.budget.held
	}
	poll(t, "a position waits behind the third", func() bool { h := held(); return h >= len(big)+2*overhead && h < leastWindow })
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(next)))
	close(hold)
	if c := g.passes(next - 1); c.Offset != epoch.Offset(next) {
		t.Errorf("the position is %d, want %d", c.Offset, next)
	}
	g.values(big, big, big, big)
}

// Nothing of ours is left when the stream is asked, but there was something.
func TestAPositionDoesNotPassWhatWasLostAtTheBeginningBeforeItCame(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for name := range r.stream().ConsumerNames(r.ctx).Name() {
		must(t, second(js.PauseConsumer(r.ctx, r.Name, name, time.Now().Add(time.Hour))))
	}
	r.log.asking.mu.Lock() // so that nothing is skipped in between
	r.publish(0, "b")
	last := r.publish(1, "other", "other")
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(last)))
	r.log.asking.mu.Unlock()
	wantMisfit(t, g.fails(), consumer.ErrOffsetExpired, 2, last)
}

// delivered is a message as a consumer sends it.
func delivered(consumer, stream uint64) *nats.Msg {
	return &nats.Msg{
		Subject: "log.0", Sub: &nats.Subscription{},
		Reply: fmt.Sprintf("$JS.ACK.log.c.1.%d.%d.%d.0", stream, consumer, time.Now().UnixNano()),
	}
}

func TestAMessageThatIsLostOnTheWayOrComesLateIsNoticed(t *testing.T) {
	t.Parallel()
	l := &streamLog{lags: make([]atomic.Int64, 1), flight: newFlight(0, func() uint64 { return 0 })}
	fresh := func() *reader {
		p := &pull{stream: "log", consumer: "c", arrived: make(chan *nats.Msg, 3), messages: 10}
		return &reader{l: l, p: epoch.Partition{Topic: "log"}, at: 5, delivered: 7, pull: p}
	}
	if _, err := fresh().slice(delivered(9, 6), 1000); !errors.Is(err, errSequence) {
		t.Errorf("the ninth message after the seventh: %v", err)
	}
	// The leader had deleted 4 when it was asked what comes from there on.
	r := fresh()
	r.pull.arrived <- delivered(9, 6)
	s, err := r.slice(delivered(8, 4), 10_000)
	if err != nil || len(s.Messages) != 1 || s.Messages[0].Offset != 6 || r.delivered != 9 || r.pull.messages != 8 {
		t.Errorf("a message from below the position: %v, %d are to come, %v", show(s.Messages), r.pull.messages, err)
	}
}

func TestALeaderThatHasNotHeardFromMostServersIsNotBelievedToHaveLostMessages(t *testing.T) {
	t.Parallel()
	peer := func(active time.Duration, offline bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Offline: offline}
	}
	for _, c := range []struct {
		name string
		info *jetstream.ClusterInfo
		want bool
	}{
		{"a server alone", nil, true},
		{"a stream on one server of a cluster", &jetstream.ClusterInfo{}, true},
		{"all", &jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{peer(0, false), peer(time.Second, false)}}, true},
		{"one of two", &jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{peer(time.Minute, false), peer(time.Second, false)}}, true},
		{"none", &jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{peer(4*time.Second, false), peer(time.Second, true)}}, false},
		{"one of four", &jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{
			peer(0, false), peer(time.Minute, false), peer(time.Minute, false), peer(time.Minute, false),
		}}, false},
	} {
		if got := heardFromMost(c.info); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Its own clock makes a server delete what its leader still has. A leader that
// has it, and messages that leave it out, are what that looks like.
func TestAMessageThatHasExpiredAtTheConsumersServerOnlyIsNotPassedOver(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, numbered(0, 5)...)
	r.publish(1, "other")
	r.publish(0, "last")
	info, err := r.log.look(r.ctx)
	must(t, err)
	expires := *info
	expires.Config.Replicas, expires.Config.MaxAge = 3, time.Hour
	at := func(age time.Duration) time.Time { return info.TimeStamp.Add(-age) }
	message := func(seq epoch.Offset, age time.Duration) consumer.Message {
		return consumer.Message{Offset: seq, Time: at(age)}
	}
	for _, c := range []struct {
		name  string
		since time.Time
		ms    []consumer.Message
		ahead bool
		good  int
		err   error
	}{
		{name: "no gap", ms: []consumer.Message{message(1, 50*time.Minute), message(2, time.Minute)}, good: 2},
		{name: "a gap long ago", ms: []consumer.Message{message(1, 50*time.Minute), message(2, 49*time.Minute), message(4, time.Minute)}, ahead: true, good: 2, err: errAhead},
		{name: "a gap of late", since: at(time.Minute), ms: []consumer.Message{message(2, 0)}, good: 1},
		{name: "a gap at the start", ms: []consumer.Message{message(3, 0)}, ahead: true, err: errAhead},
		{name: "a gap of others", ms: []consumer.Message{
			message(1, 50*time.Minute), message(2, 50*time.Minute), message(3, 50*time.Minute), message(4, 50*time.Minute), message(5, 50*time.Minute), message(7, 0),
		}, ahead: true, good: 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			rd := &reader{l: r.log, in: r.log.incarnation(), p: r.partition(0), filter: "log.0", at: 1, since: c.since}
			if got := rd.mayBeAhead(&expires, c.ms); got != c.ahead {
				t.Errorf("mayBeAhead = %v", got)
			}
			if good, err := rd.compare(r.ctx, &expires, c.ms); good != c.good || !errors.Is(err, c.err) {
				t.Errorf("compare = %d, %v; want %d, %v", good, err, c.good, c.err)
			}
			if rd.mayBeAhead(info, c.ms) {
				t.Error("a stream without a maximum age may be ahead")
			}
		})
	}
}
