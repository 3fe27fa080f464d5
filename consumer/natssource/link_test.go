package natssource

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// link is the network between one process and its server.
type link struct{ *natstest.Link }

func newLink() *link { return &link{natstest.NewLink()} }

// connect returns a JetStream whose connection goes through the link.
func (l *link) connect(t testing.TB, s servers, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	t.Cleanup(func() { l.hold(false, false) }) // after which the connection can be closed
	return s.JetStream(t, append(options, nats.SetCustomDialer(l.Link))...)
}

// hold says what does not get through from now on.
func (l *link) hold(requests, answers bool) { l.Hold(requests, answers) }

// cut ends all connections. What was held is lost.
func (l *link) cut() { l.Cut() }
