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
	most     int    // that the server lets one ask for; 0 for any number
	inbox    string // what the server says is said to a subject of its own for each request, below this one
	sub      *nats.Subscription
	arrived  chan *nats.Msg
	heard    bool // something has come from the consumer
	brought  int  // messages of the request that ended last
	largest  int  // bytes of the largest of them

	// The request under way.
	number   int
	asked    time.Time
	ends     time.Time // when the server is to have ended it
	over     uint64    // the connection that it was sent over: how often that had been made again
	answers  string    // its subject
	messages int       // that it may still bring
	bytes    int       // the same, if limited
	limited  bool
	ended    bool
	expired  bool  // it has ended without having brought everything
	tooLarge bool  // it has ended because the next message is larger than what it may bring
	err      error // why it has ended, if that is no ordinary end
}

// pullRequest is the server's JSApiConsumerGetNextRequest. It asks for no heartbeats: the
// end of a request shows that the consumer is alive, and [reader.owed] sees what it does not deliver.
type pullRequest struct {
	Expires  time.Duration `json:"expires"`
	Batch    int           `json:"batch"`
	MaxBytes int           `json:"max_bytes,omitempty"`
}

const (
	// firstExpires is how long the server keeps the first request to a consumer. That one
	// shows that requests get there, and back what is said about them.
	firstExpires = time.Second

	// laterExpires is how long it keeps those after it.
	laterExpires = time.Minute

	// turnExpires is how long it keeps one for what is known to wait, if that is not there after all:
	// others want the turn.
	turnExpires = 5 * time.Second

	// ending is how much later a request may be heard to have ended.
	ending = time.Second

	// fewMessages are asked for where the last request has brought none: what waits for
	// many takes up 8 bytes for each.
	fewMessages = 32

	// remarks is room for what the server says about requests, where the messages arrive.
	remarks = 32
)

// newPull asks that consumer for at most so many messages at once, if most is not 0.
func newPull(js jetstream.JetStream, stream, consumer string, most int) (*pull, error) {
	p := &pull{
		conn: js.Conn(), stream: stream, consumer: consumer, most: most,
		requests: apiPrefix(js) + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
	}
	return p, p.subscribe(fewMessages)
}

// subscribe makes room for what a request for so many messages may bring, and for what is said
// about it and those before. No request is under way.
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

// room is for how many messages a request may ask.
func (p *pull) room() int { return cap(p.arrived) - remarks }

// request asks for messages, for any number of bytes if that is zero; the server keeps it for as long as expires.
func (p *pull) request(messages, bytes int, expires time.Duration) error {
	if p.most > 0 {
		messages = min(messages, p.most)
	}
	room := fewMessages
	if p.brought > 0 {
		room = max(messages, p.room())
	}
	if room != p.room() {
		if err := p.subscribe(room); err != nil {
			return err
		}
	}
	p.number++
	p.answers = p.inbox + strconv.Itoa(p.number)
	p.messages, p.bytes, p.limited = min(messages, room), bytes, bytes > 0
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

// silent reports whether the request under way should have ended.
func (p *pull) silent() bool { return time.Since(p.ends) >= ending && !p.hasMore() }

// hasMore reports whether something has arrived that nobody has looked at.
func (p *pull) hasMore() bool { return p != nil && len(p.arrived) > 0 }

// forgotten reports whether the server may have forgotten the request under way.
func (p *pull) forgotten() bool { return p.conn.Stats().Reconnects != p.over }

// delivery returns what the consumer says of a message of the stream, or nil if
// the server speaks for itself.
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

// note takes note of what the server says about the request under way.
func (p *pull) note(m *nats.Msg) {
	if m.Subject != p.answers {
		return // it is about one that has ended
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

// errRequestEnded: the consumer was deleted, its server shuts down or no longer leads,
// or does not like the request.
var errRequestEnded = errors.New("the server has ended the request for messages")
