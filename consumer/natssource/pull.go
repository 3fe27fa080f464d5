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

	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file requests messages and distinguishes them from the server's status replies. Which
// messages are delivered is decided in read.go.

// pull requests messages from a consumer, one request at a time. It belongs to one goroutine.
//
// The server's status replies arrive with the messages, and users may store messages that look the
// same: no body, and a header "Status". So pull recognises a message by its reply subject, which
// names the consumer and which only the server makes. The Fetch of nats.go goes by body and header.
type pull struct {
	conn     *nats.Conn
	stream   string
	consumer string
	requests string
	most     int    // the most messages that the server allows in a request; 0: any number
	inbox    string // each request has its own reply subject below this one
	sub      *nats.Subscription
	arrived  chan *nats.Msg
	heard    bool // the consumer has sent something
	brought  int  // messages of the last request
	largest  int  // bytes of the largest of them

	// The request under way.
	number   int
	asked    time.Time
	ends     time.Time // when the server is to end it
	over     uint64    // reconnects of the connection when it was sent
	answers  string
	messages int // that it may still bring
	bytes    int // that it may still bring, if limited
	limited  bool
	ended    bool
	expired  bool  // it ended before it brought everything
	tooLarge bool  // it ended because the next message is larger than its bytes
	err      error // why it ended, unless it ended as it should
}

// pullRequest is the server's JSApiConsumerGetNextRequest. It asks for no heartbeats: the end of a
// request shows that the consumer is alive, and [reader.undelivered] finds messages that it does not
// deliver.
type pullRequest struct {
	Expires  time.Duration `json:"expires"`
	Batch    int           `json:"batch"`
	MaxBytes int           `json:"max_bytes,omitempty"`
}

const (
	// firstExpires is how long the server keeps the first request to a consumer. The end of that
	// request shows that requests and replies arrive.
	firstExpires = time.Second

	// laterExpires is how long the server keeps later requests.
	laterExpires = time.Minute

	// turnExpires is how long the server keeps a request for messages that are known to wait. If
	// they are gone after all, other readers want the permit.
	permitExpires = 5 * time.Second

	// ending is how late the end of a request may arrive.
	ending = time.Second

	// fewMessages is the size of a request after one that brought no messages: the channel for a
	// request takes 8 bytes for each message.
	fewMessages = 32

	// remarks is the space for status replies in the channel of messages.
	remarks = 32
)

func newPull(js jetstream.JetStream, stream, consumer string, most int) (*pull, error) {
	p := &pull{
		conn: js.Conn(), stream: stream, consumer: consumer, most: most,
		requests: jsapi.Prefix(js) + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
	}
	return p, p.subscribe(fewMessages)
}

// subscribe makes space for a request's messages and for status replies. No request is under way.
func (p *pull) subscribe(messages int) error {
	if p.sub != nil {
		p.close()
	}
	p.inbox, p.arrived = p.conn.NewInbox()+".", make(chan *nats.Msg, messages+remarks)
	var err error
	p.sub, err = p.conn.ChanSubscribe(p.inbox+"*", p.arrived)
	return err
}

func (p *pull) close() { _ = p.sub.Unsubscribe() } // the connection may be closed

func (p *pull) capacity() int { return cap(p.arrived) - remarks }

// request asks for messages, of any size if bytes is 0. The server keeps it for expires.
func (p *pull) request(messages, bytes int, expires time.Duration) error {
	if p.most > 0 {
		messages = min(messages, p.most)
	}
	capacity := fewMessages
	if p.brought > 0 {
		capacity = max(messages, p.capacity())
	}
	if capacity != p.capacity() {
		if err := p.subscribe(capacity); err != nil {
			return err
		}
	}
	p.number++
	p.answers = p.inbox + strconv.Itoa(p.number)
	p.messages, p.bytes, p.limited = min(messages, capacity), bytes, bytes > 0
	p.ended, p.expired, p.tooLarge, p.err, p.brought, p.largest = false, false, false, nil, 0, 0
	if !p.heard {
		expires = firstExpires
	}
	p.asked = time.Now()
	p.ends, p.over = p.asked.Add(expires), p.conn.Stats().Reconnects
	data, err := json.Marshal(pullRequest{Expires: expires, Batch: p.messages, MaxBytes: bytes})
	if err != nil {
		return err
	}
	return p.conn.PublishRequest(p.requests, p.answers, data)
}

func (p *pull) silent() bool { return time.Since(p.ends) >= ending && !p.hasMore() }

func (p *pull) hasMore() bool { return p != nil && len(p.arrived) > 0 }

// forgotten reports whether a reconnect may have made the server forget the request.
func (p *pull) forgotten() bool { return p.conn.Stats().Reconnects != p.over }

// delivery returns the metadata of a message, or nil for a status reply.
func (p *pull) delivery(m *nats.Msg) *nats.MsgMetadata {
	meta, err := m.Metadata()
	if err != nil || meta.Stream != p.stream || meta.Consumer != p.consumer {
		p.note(m)
		return nil
	}
	p.heard = true
	p.brought++
	p.messages--
	p.bytes -= m.Size() // which is how the server counts
	p.largest = max(p.largest, m.Size())
	if p.messages <= 0 || p.limited && p.bytes <= 0 {
		p.ended = true
	}
	return meta
}

func (p *pull) note(m *nats.Msg) {
	if m.Subject != p.answers {
		return // about an earlier request
	}
	p.heard = true
	status, said := m.Header.Get("Status"), m.Header.Get("Description")
	switch {
	case status == "100": // a heartbeat
	case status == "404", status == "408":
		p.ended, p.expired = true, true
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

// errRequestEnded is returned when the consumer was deleted, its server shuts down or no longer
// leads, or the server refuses the request.
var errRequestEnded = errors.New("the server has ended the request for messages")
