package natssource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
)

// consumers are the names of those that the stream has.
func (r *logRig) consumers() []string {
	r.t.Helper()
	list := r.stream().ConsumerNames(r.ctx)
	var names []string
	for name := range list.Name() {
		names = append(names, name)
	}
	must(r.t, list.Err())
	slices.Sort(names)
	return names
}

// A consumer that went with its server says nothing, and one that is paused ends its requests
// as if there were no messages.
func TestAMessageThatAConsumerOwesIsNoticedWithinSeconds(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.skipEvery = time.Hour // nothing else notices
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for _, name := range r.consumers() {
		must(t, second(js.PauseConsumer(r.ctx, r.Name, name, time.Now().Add(time.Hour))))
	}
	r.publish(1, "other")
	r.publish(0, "b")
	began, pulse := time.Now(), pulsetest.Start(t, func(ctx context.Context) error { return second(js.AccountInfo(ctx)) })
	g.values("a", "b")
	if took := time.Since(began); took > 3*(lookEvery+askEvery)+pulse.Stalled() {
		t.Errorf("it came after %v", took)
	}
}

// A partition is taken away while its consumer is being made: shares move most when members start.
func TestAConsumerThatWasMadeWithoutAnAnswerIsDeleted(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	r := newLogRig(t, s.JetStream(t))
	ctx, stop := context.WithCancel(r.ctx)
	var seen atomic.Int32
	r.log = r.open(answering(t, s, func(asked string, _ map[string]any) map[string]any {
		if strings.HasPrefix(asked, "CONSUMER.CREATE.log.") {
			seen.Store(int32(len(r.consumers())))
			stop()
		}
		return nil
	}))
	rd := r.reader(0, 1, epoch.NoMark)
	if err := rd.open(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("open says %v", err)
	}
	poll(t, "the consumer is deleted", func() bool { return seen.Load() == 1 && len(r.consumers()) == 0 })
}

// The server forgets a request with the connection that it came by, and nothing says so.
func TestARequestThatWentWithItsConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	r := newLogRig(t, s.JetStream(t))
	wires := newLink()
	r.log = r.open(wires.connect(t, s))
	r.log.skipEvery = time.Hour
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	poll(t, "it waits for as long as requests last, and the first one did not", func() bool {
		names := r.consumers()
		if len(names) != 1 {
			return false
		}
		info, err := r.js.Consumer(r.ctx, r.Name, names[0])
		return err == nil && info.CachedInfo().NumWaiting == 1 && time.Since(info.CachedInfo().Created) > firstExpires+ending
	})
	before := r.consumers()
	wires.cut()
	// Nobody publishes: that the stream has grown is no reason.
	poll(t, "another consumer is asked", func() bool { now := r.consumers(); return len(now) == 1 && now[0] != before[0] })
}

func TestReadersOfAQuietStreamAskForNextToNothing(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	r := newLogRig(t, s.JetStream(t))
	js := s.JetStream(t)
	r.log = r.open(js)
	r.log.skipEvery = time.Second
	r.publish(0, "a")
	r.publish(1, "b")
	r.publish(2, "c")
	for n, value := range []string{"a", "b", "c"} {
		r.read(r.fence(int32(n), 1)).values(value)
	}
	// One look a second or two, whoever reads. A request a second of each would be 18 more.
	const quiet = 6 * time.Second
	most := uint64(15)
	poll(t, fmt.Sprintf("no more than %d requests are sent in %v", most, quiet), func() bool {
		before := js.Conn().Stats().OutMsgs
		timer := time.NewTimer(quiet)
		<-timer.C
		sent := js.Conn().Stats().OutMsgs - before
		t.Logf("three readers have sent %d requests", sent)
		return sent <= most
	})
}

// The stream ends where the reader is, but with another message.
func TestAStreamThatWasRewrittenUpToAReaderIsTruncated(t *testing.T) {
	t.Parallel()
	r := newLogRig(t, natstest.Start(t).JetStream(t))
	end := r.publish(1, numbered(0, 5)...)
	m, err := r.stream().GetMsg(r.ctx, end)
	must(t, err)
	right := fingerprint(m.Time)
	must(t, second(r.log.look(r.ctx)))
	wantMisfit(t, r.reader(0, end+1, right^1).skipIfDue(r.ctx, true), consumer.ErrTruncated, end+1, end)
	if !r.reader(0, end+1, right).isAtEnd(r.ctx) {
		t.Error("the reader is not at the stream's end")
	}
}

// It takes long to ask for a large message, and it has come meanwhile.
func TestAMessageThatHasArrivedIsNotUndelivered(t *testing.T) {
	t.Parallel()
	r := newLogRig(t, natstest.Start(t).JetStream(t))
	rd := r.reader(0, 1, -1)
	rd.pull = &pull{arrived: make(chan *nats.Msg, 1)}
	rd.undelivered = undelivered{first: 1, noticed: time.Now().Add(-time.Hour)}
	rd.pull.arrived <- &nats.Msg{}
	must(t, rd.suspect(1))
	<-rd.pull.arrived
	if err := rd.suspect(1); !errors.Is(err, errStalled) {
		t.Errorf("suspect = %v, want errStalled", err)
	}
}
