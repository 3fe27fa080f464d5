package natssource

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestWhatTheServerSaysEndsOneRequestAndNoOther(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status, description string
		ended, tooLarge     bool
		err                 error
	}{
		{status: "100", description: "Idle Heartbeat"},
		{status: "404", description: "No Messages", ended: true},
		{status: "408", description: "Request Timeout", ended: true},
		{status: "408", description: "Interest Expired", ended: true},
		{status: "409", description: "Message Size Exceeds MaxBytes", ended: true, tooLarge: true},
		{status: "409", description: "Batch Completed", ended: true},
		{status: "409", description: "Consumer Deleted", ended: true, err: errRequestEnded},
		{status: "409", description: "Leadership Change", ended: true, err: errRequestEnded},
		{status: "409", description: "Server Shutdown", ended: true, err: errRequestEnded},
		{status: "409", description: "Exceeded MaxRequestBatch of 10", ended: true, err: errRequestEnded},
		{status: "400", description: "Bad Request", ended: true, err: errRequestEnded},
		{status: "503", ended: true, err: nats.ErrNoResponders},
		{ended: true, err: errRequestEnded}, // whatever that is
	} {
		said := &nats.Msg{Subject: "inbox.2", Sub: &nats.Subscription{}, Header: nats.Header{"Status": {c.status}, "Description": {c.description}}}
		p := &pull{stream: "log", consumer: "c", answers: "inbox.2", messages: 10}
		if meta := p.delivery(said); meta != nil || p.ended != c.ended || p.tooLarge != c.tooLarge || !errors.Is(p.err, c.err) {
			t.Errorf("%s %s: ended %v, too large %v, %v", c.status, c.description, p.ended, p.tooLarge, p.err)
		}
		p = &pull{stream: "log", consumer: "c", answers: "inbox.3", messages: 10}
		if meta := p.delivery(said); meta != nil || p.ended || p.err != nil {
			t.Errorf("%s %s, of an earlier request: ended %v, %v", c.status, c.description, p.ended, p.err)
		}
		// The same from a user.
		said.Subject, said.Reply = "log.0", delivered(1, 1).Reply
		if meta := p.delivery(said); meta == nil || p.ended || p.messages != 9 {
			t.Errorf("%s %s, of a user: ended %v, %d are to come", c.status, c.description, p.ended, p.messages)
		}
	}
}

// The server has no word for it while nothing is to be delivered.
func TestAConsumerThatIsDeletedUnderItsReaderIsReplaced(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	g := r.read(r.fence(0, 1))
	g.values("a")
	for name := range r.stream().ConsumerNames(r.ctx).Name() {
		must(t, r.stream().DeleteConsumer(r.ctx, name))
	}
	r.publish(0, "b")
	g.values("a", "b")
}

func TestNoMoreIsAskedForThanTheServerAllows(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t, func(o *server.Options) { o.JetStreamLimits.MaxRequestBatch = 50 }).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "first")
	g := r.read(r.fence(0, 1))
	g.values("first")
	before := <-r.stream().ConsumerNames(r.ctx).Name()
	want := []string{"first"}
	for i := range 200 {
		want = append(want, fmt.Sprint(i))
	}
	r.publish(0, want[1:]...)
	g.values(want...)
	if after := <-r.stream().ConsumerNames(r.ctx).Name(); after != before {
		t.Error("the server has refused a request, and the reader made a consumer anew")
	}
}

// publisher sends what no client library would.
type publisher struct {
	t     testing.TB
	conn  net.Conn
	said  *bufio.Reader
	acks  *nats.Subscription
	inbox string
}

func newPublisher(t testing.TB, s *natstest.Server, nc *nats.Conn) *publisher {
	p := &publisher{t: t, inbox: nc.NewInbox()}
	var err error
	p.conn, err = net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
	must(t, err)
	t.Cleanup(func() { _ = p.conn.Close() })
	p.said = bufio.NewReader(p.conn)
	p.acks, err = nc.SubscribeSync(p.inbox)
	must(t, err)
	must(t, nc.FlushTimeout(10*time.Second))
	must(t, p.send("CONNECT {\"verbose\":false,\"headers\":true}\r\nPING\r\n"))
	for line := ""; line != "PONG\r\n"; {
		line, err = p.said.ReadString('\n')
		must(t, err)
	}
	return p
}

func (p *publisher) send(data string) error {
	must(p.t, p.conn.SetDeadline(time.Now().Add(10*time.Second)))
	return second(p.conn.Write([]byte(data)))
}

// publish returns the sequence under which the message is stored, zero if the
// server has refused it.
func (p *publisher) publish(subject, header, body string) uint64 {
	must(p.t, p.send(fmt.Sprintf("HPUB %s %s %d %d\r\n%s%s\r\n", subject, p.inbox, len(header), len(header)+len(body), header, body)))
	m, err := p.acks.NextMsg(10 * time.Second)
	must(p.t, err)
	var ack struct {
		Seq       uint64          `json:"seq"`
		Duplicate bool            `json:"duplicate"`
		Error     json.RawMessage `json:"error"`
	}
	must(p.t, json.Unmarshal(m.Data, &ack))
	if ack.Error != nil || ack.Duplicate {
		return 0
	}
	return ack.Seq
}

func TestEveryMessageThatAStreamTakesIsDeliveredWithTheHeadersItHas(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // it tells of headers it cannot parse
	r := newLogRig(t, js)
	p := newPublisher(t, server, js.Conn())
	g := r.read(r.fence(0, 1))
	lines := rapid.OneOf(
		rapid.SampledFrom([]string{
			"NATS/1.0\r\n", "NATS/1.0 100 Idle Heartbeat\r\n", "NATS/1.0 100 FlowControl Request\r\n", "NATS/1.0 404 No Messages\r\n",
			"NATS/1.0 408 Request Timeout\r\n", "NATS/1.0 409 Consumer Deleted\r\n", "NATS/1.0 503\r\n", "NATS/1.0 5\r\n", "NATS/2.0\r\n",
			"Status: 100\r\n", "Status: 404\r\n", "Status:409\r\n", "Status: shipped\r\n", "status: 503\r\n", "Description: Consumer Deleted\r\n",
			"Nats-Pending-Messages: 1\r\n", "Nats-Last-Consumer: 1\r\n", "Nats-Consumer-Stalled: x\r\n", "Nats-Subject: x\r\n",
			"\r\n", "\n", ":", ": \r\n", "a:b:c\r\n", " a : b \r\n", "\xff\xfe: \x00\r\n", "no colon\r\n",
		}),
		rapid.StringN(0, 10, 20), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 10), func(b []byte) string { return string(b) }),
	)
	stored := 0
	rapid.Check(t, func(rt *rapid.T) {
		header := strings.Join(rapid.SliceOfN(lines, 0, 4).Draw(rt, "lines"), "")
		if rapid.Bool().Draw(rt, "well formed") {
			header = "NATS/1.0\r\n" + header + "\r\n"
		}
		seq := p.publish("log.0", header, rapid.SampledFrom([]string{"", "", "x"}).Draw(rt, "body"))
		if seq == 0 {
			return
		}
		stored++
		want, err := r.log.stored(r.ctx, seqRequest{Seq: seq})
		must(t, err)
		var got consumer.Message
		g.await(fmt.Sprintf("message %d, with headers %q", seq, header), func(ms []consumer.Message, _ error) bool {
			for i := len(ms) - 1; i >= 0; i-- {
				if got = ms[i]; uint64(got.Offset) == seq {
					return true
				}
			}
			return false
		})
		parsed, _ := nats.DecodeHeadersMsg(want.Header)
		if string(got.Value) != string(want.Data) || fmt.Sprintf("%q", got.Headers) != fmt.Sprintf("%q", headers(parsed)) {
			rt.Errorf("message %d is %q with headers %q; stored are %q and %q", seq, got.Value, got.Headers, want.Data, want.Header)
		}
	})
	if stored < 20 {
		t.Errorf("the stream has taken %d messages only", stored)
	}
	g.stop()
	<-g.ended
	if ms := g.all(); g.err != nil || len(ms) < stored {
		t.Errorf("%d of %d messages, and then %v", len(ms), stored, g.err)
	}
}
