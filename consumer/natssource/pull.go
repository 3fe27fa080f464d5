package natssource

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pull asks a consumer for messages, one request at a time. It belongs to one
// goroutine.
//
// What the server says about a request arrives where the messages do, and users
// may store messages that look the same: no body, and a header "Status". A
// message is therefore told by its reply subject, which names the consumer and is the
// server's to make, and not by its looks, by which the Fetch of nats.go goes.
type pull struct {
	conn     *nats.Conn
	stream   string
	consumer string
	requests string // the subject for requests
	inbox    string // what the server says is said to a subject of its own for each request, below this one
	sub      *nats.Subscription
	arrived  chan *nats.Msg

	// The request under way.
	number   int
	answers  string // its subject
	messages int    // that it may still bring
	bytes    int    // the same, if limited
	limited  bool
	ended    bool
	tooLarge bool  // it has ended because the next message is larger than what it may bring
	err      error // why it has ended, if that is no ordinary end
}

// pullRequest is the server's JSApiConsumerGetNextRequest.
type pullRequest struct {
	Expires   time.Duration `json:"expires"`
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// expires is how long the server keeps a request.
const expires = 30 * time.Second

func newPull(js jetstream.JetStream, stream, consumer string) (*pull, error) {
	conn := js.Conn()
	p := &pull{
		conn: conn, stream: stream, consumer: consumer, inbox: conn.NewInbox() + ".",
		requests: apiPrefix(js) + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		// All that a request may bring, and what is said about it and those before.
		arrived: make(chan *nats.Msg, mostMessages+64),
	}
	var err error
	p.sub, err = conn.ChanSubscribe(p.inbox+"*", p.arrived)
	return p, err
}

func (p *pull) close() { _ = p.sub.Unsubscribe() } // the connection may be closed

// request asks for messages; for any number of bytes if that is zero.
func (p *pull) request(messages, bytes int) error {
	p.number++
	p.answers = p.inbox + strconv.Itoa(p.number)
	p.messages, p.bytes, p.limited = messages, bytes, bytes > 0
	p.ended, p.tooLarge, p.err = false, false, nil
	data, err := json.Marshal(pullRequest{Expires: expires, Batch: messages, MaxBytes: bytes, Heartbeat: heartbeat})
	if err != nil {
		return err
	}
	return p.conn.PublishRequest(p.requests, p.answers, data)
}

// delivery returns what the consumer says of a message of the stream, or nil if
// the server speaks for itself.
func (p *pull) delivery(m *nats.Msg) *nats.MsgMetadata {
	meta, err := m.Metadata()
	if err != nil || meta.Stream != p.stream || meta.Consumer != p.consumer {
		p.note(m)
		return nil
	}
	p.messages--
	p.bytes -= m.Size() // which is how the server counts
	if p.messages <= 0 || p.limited && p.bytes <= 0 {
		p.ended = true
	}
	return meta
}

// note takes note of what the server says about the request under way.
func (p *pull) note(m *nats.Msg) {
	if m.Subject != p.answers {
		return // it is about one that has ended
	}
	status, said := m.Header.Get("Status"), m.Header.Get("Description")
	switch {
	case status == "100": // a heartbeat
	case status == "404", status == "408":
		p.ended = true
	case status == "409" && strings.EqualFold(said, "Message Size Exceeds MaxBytes"):
		p.ended, p.tooLarge = true, true
	case status == "409" && strings.EqualFold(said, "Batch Completed"):
		p.ended = true
	case status == "503":
		p.ended, p.err = true, nats.ErrNoResponders
	default:
		p.ended, p.err = true, fmt.Errorf("%w: %s %s", errRequestEnded, status, said)
	}
}

// errRequestEnded: the consumer was deleted, its server shuts down or no longer leads,
// or does not like the request.
var errRequestEnded = errors.New("the server has ended the request for messages")
