package natssource

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestAPartitionIsReadInOrderWithWhatItsMessagesHold(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	r.publish(1, "other")
	m := nats.NewMsg("log.0")
	m.Data = []byte("b")
	m.Header = nats.Header{"z": {"2", "1"}, "A": {"x"}}
	must(t, second(js.PublishMsg(r.ctx, m)))
	g := r.read(r.fence(0, 0))
	g.values("a", "b")
	r.publish(2, "other")
	r.publish(0, "c")
	g.values("a", "b", "c")
	b := g.all()[1]
	if b.Partition != r.fence(0, 0).Partition || b.Offset != 3 || string(b.Key) != "log.0" || b.Time.IsZero() {
		t.Errorf("the message is %+v", b)
	}
	want := []consumer.Header{{Key: "A", Value: []byte("x")}, {Key: "z", Value: []byte("2")}, {Key: "z", Value: []byte("1")}}
	if len(b.Headers) != 3 || b.Headers[0].Key != "A" || string(b.Headers[1].Value) != "2" || string(b.Headers[2].Value) != "1" {
		t.Errorf("headers %q, want %q", b.Headers, want)
	}
	g.stop()
	<-g.ended
	if g.err != nil {
		t.Errorf("Read has ended with %v", g.err)
	}
}

func TestAMessageLargerThanTheWindowIsDelivered(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.budget = newBudget(100_000)
	huge := strings.Repeat("x", 900_000)
	r.publish(0, "a", huge, "b", huge, huge, "c")
	r.read(r.fence(0, 1)).values("a", huge, "b", huge, huge, "c")
}

func TestManyMessagesComeThroughASmallBufferInOneGo(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.budget = newBudget(200_000)
	var want []string
	for i := range 3000 {
		v := strings.Repeat("x", i%2000)
		want = append(want, v)
		must(t, second(js.PublishAsync("log.0", []byte(v))))
	}
	<-js.PublishAsyncComplete()
	g := r.read(r.fence(0, 1))
	g.values(want...)
	list := r.stream().ConsumerNames(r.ctx)
	var names []string
	for name := range list.Name() {
		names = append(names, name)
	}
	if len(names) != 1 {
		t.Errorf("%d consumers were needed, want 1: requests do not end where the server thinks they do", len(names))
	}
}

func TestAPositionAboveTheStreamsEndIsTruncated(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a", "b")
	wantMisfit(t, r.read(r.fence(0, 4)).fails(), consumer.ErrTruncated, 4, 3)
	g := r.read(r.fence(0, 3))
	r.publish(0, "c")
	g.values("c")
}

func TestAStreamThatWasCreatedAgainIsAnotherLog(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	renewed := make(chan struct{}, 8)
	r.log.renewed = func() { renewed <- struct{}{} }
	r.publish(0, "a", "b")
	old := r.log.incarnation()
	g := r.read(r.fence(0, 1))
	g.values("a", "b")
	must(t, js.DeleteStream(r.ctx, r.Name))
	r.create()
	r.publish(0, "x", "y", "z")
	err := g.fails()
	var changed *epoch.LogChangedError
	if !errors.As(err, &changed) {
		t.Fatalf("Read has ended with %v, want a *LogChangedError; it has read %v", err, show(g.all()))
	}
	<-renewed
	now := r.log.incarnation()
	if now == old || changed.Next != 3 || changed.Fence != r.log.logID(old, 0) || changed.Source != r.log.logID(now, 0) {
		t.Errorf("the error is %+v", changed)
	}
	g.values("a", "b")
	if _, err := r.log.starts(r.ctx, old, r.origin, consumer.StartEarliest); !errors.Is(err, consumer.ErrLost) {
		t.Errorf("starts for the old life: %v", err)
	}
	r.read(r.fence(0, 1)).values("x", "y", "z")
}

func TestAStreamThatIsCreatedAgainWhileNobodyReadsIsNoticed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	renewed := make(chan struct{}, 8)
	r.log.renewed = func() { renewed <- struct{}{} }
	go r.log.watch(r.ctx)
	must(t, js.DeleteStream(r.ctx, r.Name))
	r.create()
	select {
	case <-renewed:
	case <-r.ctx.Done():
		t.Fatal("nobody noticed")
	}
}

func TestAStreamThatIsGoneIsSaidToBe(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	must(t, js.DeleteStream(r.ctx, r.Name))
	err := g.fails()
	if !errors.Is(err, jetstream.ErrStreamNotFound) || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("Read has ended with %v", err)
	}
}

// Guard: recognise. Without it the rewritten messages are skipped.
func TestALogThatWasRewrittenUnderTheSameSequencesIsTruncated(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	r := newLogRig(t, server.JetStream(t))
	r.publish(0, numbered(0, 10)...)
	old := backup(t, server)
	r.publishAgain(0, numbered(10, 15)...)
	g := r.read(r.fence(0, 1))
	g.values(numbered(0, 15)...)
	ms := g.all()
	rollBack(t, server, old)
	// The live reader sees the stream while it is short, or once it has grown
	// again.
	r.publishAgain(0, numbered(100, 120)...)
	if err := g.fails(); !errors.Is(err, consumer.ErrTruncated) {
		t.Errorf("the live reader has ended with %v", err)
	}
	for i, m := range ms {
		from := r.fence(0, uint64(m.Offset)+1)
		from.Mark = fingerprint(m.Time)
		if i < 10 { // what was applied is still there
			r.read(from).await("the next message", func(ms []consumer.Message, _ error) bool { return len(ms) > 0 })
			continue
		}
		wantMisfit(t, r.read(from).fails(), consumer.ErrTruncated, uint64(from.Next), uint64(m.Offset))
	}
}

// A consumer that shows that it is alive, and delivers nothing.
func TestAConsumerThatDoesNotDeliverIsReplaced(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for name := range r.stream().ConsumerNames(r.ctx).Name() {
		must(t, second(js.PauseConsumer(r.ctx, r.Name, name, time.Now().Add(time.Hour))))
	}
	r.publish(0, "b")
	g.values("a", "b")
}

func TestAConsumerThatIsDeletedIsReplaced(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for name := range r.stream().ConsumerNames(r.ctx).Name() {
		must(t, js.DeleteConsumer(r.ctx, r.Name, name))
	}
	r.publish(0, "b")
	g.values("a", "b")
	if g.err != nil {
		t.Error(g.err)
	}
}

func wantMisfit(t testing.TB, err, kind error, position, found uint64) {
	t.Helper()
	var misfit *consumer.PositionError
	if !errors.As(err, &misfit) || !errors.Is(err, kind) || misfit.Position != epoch.Offset(position) || misfit.Found != epoch.Offset(found) {
		t.Errorf("the error is %v; want %v, at %d, found %d", err, kind, position, found)
	}
}

func TestABatchSaysHowMuchOfItsPartitionIsBehindIt(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	for i := range 700 { // more than a slice has
		r.publish(0, fmt.Sprint(i))
		if i%7 == 0 {
			r.publish(1, "other")
		}
	}
	g := r.read(r.fence(0, 0))
	g.await("all of them", func(ms []consumer.Message, _ error) bool { return len(ms) == 700 })
	g.stop()
	<-g.ended
	if len(g.behind) < 2 || g.behind[0] < 200 {
		t.Errorf("the first of %d batches says that %d are behind it, want at least 200", len(g.behind), g.behind[0])
	}
	if last := g.behind[len(g.behind)-1]; last != 0 {
		t.Errorf("the last batch says that %d are behind it", last)
	}
}
