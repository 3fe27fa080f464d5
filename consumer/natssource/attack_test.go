package natssource

import (
	"context"
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

// reader is one at a position, and is not run.
func (r *logRig) reader(n int32, at uint64, last epoch.Mark) *reader {
	f := newFeed(r.log.budget)
	r.t.Cleanup(f.close)
	from := r.fence(n, at)
	return &reader{
		l: r.log, in: r.log.incarnation(), p: r.partition(n), fence: &from, filter: r.log.filters[n],
		feed: f, at: at, print: last,
	}
}

// The consumer's server has stored one message more than the leader, and dropped
// another for it.
func TestALeaderThatHasNotStoredTheMessageYetExplainsNoGap(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs = 3 })
	r.publish(0, "a", "lost")
	before, err := r.log.look(r.ctx)
	must(t, err)
	last := r.publish(0, "c", "d", "e")
	answers := 0
	r.log.asking.ask = func(ctx context.Context) (*jetstream.StreamInfo, error) {
		if answers++; answers <= 2 {
			return before, nil
		}
		return r.log.request(ctx)
	}
	good, err := r.reader(0, 2, -1).verify(r.ctx, []consumer.Message{{Offset: epoch.Offset(last - 1)}, {Offset: epoch.Offset(last)}})
	if good != 0 {
		t.Errorf("%d messages behind the gap are handed on", good)
	}
	wantMisfit(t, err, consumer.ErrOffsetExpired, 2, 3)
}

// A message that never expires holds the stream's beginning where it is, while
// those behind it go.
func TestMessagesThatHaveExpiredBehindOneThatNeverDoesAreNotPassedOver(t *testing.T) {
	t.Parallel()
	const maxAge = 5 * time.Second
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) {
		c.MaxAge, c.AllowMsgTTL, c.Duplicates = maxAge, true, time.Second
	})
	m := nats.NewMsg("log.1")
	m.Header.Set(jetstream.MsgTTLHeader, "never")
	must(t, second(js.PublishMsg(r.ctx, m)))
	r.publish(0, "read")
	lost := r.publish(0, "lost")
	poll(t, "the messages have expired", func() bool {
		info, err := r.stream().Info(r.ctx)
		must(t, err)
		return info.State.Msgs == 1 && info.State.FirstSeq == 1
	})
	r.publish(1, "other")
	wantMisfit(t, r.read(r.fence(0, lost)).fails(), consumer.ErrOffsetExpired, lost, lost+2) // by a skip
	r.log.skipEvery = time.Hour
	next := r.publish(0, "next")
	wantMisfit(t, r.read(r.fence(0, lost)).fails(), consumer.ErrOffsetExpired, lost, next)
	// Who has read all is not concerned, however quiet it was.
	r.log.skipEvery = 20 * time.Millisecond
	g := r.read(r.fence(2, next+1))
	limit := time.NewTimer(2 * maxAge)
	defer limit.Stop()
	<-limit.C
	r.publish(1, "other")
	at := r.publish(2, "quiet")
	g.values("quiet")
	if ms := g.all(); ms[0].Offset != epoch.Offset(at) {
		t.Errorf("read %v", show(ms))
	}
}

// Its consumer may have outlived that.
func TestAStreamThatLosesItsEndUnderAReaderIsTruncated(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(1, numbered(0, 5)...)
	wantMisfit(t, r.reader(0, 9, -1).skip(r.ctx, true), consumer.ErrTruncated, 9, 6)
	m, err := r.stream().GetMsg(r.ctx, 3)
	must(t, err)
	right := fingerprint(m.Time)
	wantMisfit(t, r.reader(0, 4, right^1).skip(r.ctx, true), consumer.ErrTruncated, 4, 3)
	must(t, r.reader(0, 4, right).skip(r.ctx, true))
	must(t, r.reader(0, 6, -1).skip(r.ctx, true))
}

func TestAStreamThatIsPurgedToTheLastMessageGoesOnWhereItEnds(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	last := r.publish(0, numbered(0, 3)...)
	g := r.read(r.fence(0, 1))
	g.values("0", "1", "2")
	from := r.fence(0, last+1)
	from.Mark = fingerprint(g.all()[2].Time)
	must(t, r.stream().Purge(r.ctx))
	again := r.read(from)
	r.publish(0, "3")
	g.values("0", "1", "2", "3")
	again.values("3")
}

func TestATransformThatIsChangedUnderAReaderEndsItsRead(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := &logRig{t: t, ctx: inTime(t), js: js, Stream: Stream{Name: "log", Transform: &Transform{"log.*", "log.{{partition(2,1)}}.{{wildcard(1)}}"}}}
	transform := func(to string) func(*jetstream.StreamConfig) {
		return func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "log.*", Destination: to}
		}
	}
	c := r.create(transform(r.Transform.Destination))
	r.log = r.open(js)
	g := r.read(r.fence(0, 1))
	c.SubjectTransform.Destination = "log.{{partition(4,1)}}.{{wildcard(1)}}"
	must(t, second(js.UpdateStream(r.ctx, c)))
	err := g.fails()
	var differs *TransformError
	if !errors.As(err, &differs) || !strings.Contains(err.Error(), "partition(4,1)") {
		t.Errorf("Read has ended with %v", err)
	}
}

func TestAPositionOfARecreatedStreamIsNotAdopted(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	a := r.start("a")
	g := a.granted(0)
	byHand := fmt.Appendf(nil, `{"next":77,"log":%q}`, g.Origin().Log)
	must(t, second(r.bucket().write(inTime(t), positionInBucket("billing", "orders", 0), byHand)))
	if at, ok, err := g.Committed(inTime(t)); err != nil || !ok || at.Offset != 77 {
		t.Errorf("committed is %+v, %v, %v; want the position that was published", at, ok, err)
	}
	st, err := r.js.Stream(inTime(t), "orders")
	must(t, err)
	must(t, r.js.DeleteStream(inTime(t), "orders"))
	must(t, second(r.js.CreateStream(inTime(t), st.CachedInfo().Config)))
	_ = g.lost(t)
	if at, ok, err := a.granted(0).Committed(inTime(t)); err != nil || ok {
		t.Errorf("committed in the other stream is %+v, %v", at, err)
	}
}

// One that is started again and again for ever would cost the others a
// partition each time.
func TestAMemberThatCannotStartIsNotGivenPartitions(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	s := natstest.Start(t, withUser(publish, subscribe, []string{"$JS.API.CONSUMER.CREATE.KV_leases.>"}))
	js := s.JetStream(t, nats.UserInfo("admin", "admin"))
	source := asUser(t, s, js)
	if err := source.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) {}); err == nil {
		t.Fatal("Run: no error")
	}
	st, err := js.Stream(inTime(t), "KV_leases")
	must(t, err)
	if n := st.CachedInfo().State.LastSeq; n != 0 {
		t.Errorf("%d keys were written", n)
	}
}
