package natssource

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// positionWrites stops writes of positions: the first before it is sent, the second
// after it was answered.
type positionWrites struct {
	jetstream.JetStream
	mu      sync.Mutex
	n       int
	first   chan struct{} // closed when the first is about to be sent
	send    chan struct{} // lets it go
	second  chan struct{} // closed when the second was answered
	proceed chan struct{} // lets it return
}

func (w *positionWrites) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	n := 0
	if strings.Contains(m.Subject, ".position.") {
		w.mu.Lock()
		w.n++
		n = w.n
		w.mu.Unlock()
	}
	if n == 1 {
		close(w.first)
		<-w.send
	}
	ack, err := w.JetStream.PublishMsg(ctx, m, opts...)
	if n == 2 {
		close(w.second)
		<-w.proceed
	}
	return ack, err
}

func TestAPositionThatIsWrittenLateDoesNotTakeThePlaceOfANewerOne(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Minute)
	w := &positionWrites{
		JetStream: r.js, first: make(chan struct{}), send: make(chan struct{}), second: make(chan struct{}), proceed: make(chan struct{}),
	}
	o := r.options()
	o.JetStream = w
	source, err := New(o)
	must(t, err)
	held, ended := make(chan *tenure, 1), make(chan error, 1)
	ctx, leave := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		ended <- source.Run(ctx, func(error) {}, func(ctx context.Context, t consumer.Tenure) {
			held <- t.(*tenure)
			select {
			case <-t.Draining():
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		leave()
		must(t, <-ended)
	})
	var tn *tenure
	select {
	case tn = <-held:
	case <-inTime(t).Done():
		t.Fatal("the partition was not granted")
	}
	publish := func(next epoch.Offset) (done chan struct{}) {
		tn.Mirror(epoch.Fence{Origin: tn.Origin(), Epoch: 1, Next: next, Mark: epoch.NoMark, Applied: true})
		done = make(chan struct{})
		go func() {
			defer close(done)
			tn.publish(inTime(t))
		}()
		return done
	}
	old := publish(3)
	<-w.first
	newer := publish(8)
	select {
	case <-w.second:
	case <-time.After(200 * time.Millisecond): // it waits for the first, which nothing tells
	}
	close(w.send)
	<-old
	close(w.proceed)
	<-newer
	tn.publish(inTime(t)) // as after the next renewal
	at, _, err := source.mirrored(inTime(t), lease.Resource{Name: "orders"})
	if err != nil || at.Next != 8 {
		t.Errorf("the position is %+v, %v; want 8", at, err)
	}
}
