package natssource

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file requests messages, distinguishes them from the server's status replies, and keeps what was
// read for a partition and not yet taken, within the bytes that all partitions of a stream may read ahead
// together. Which messages are delivered is decided in read.go.

// feed holds the batches that were read for a partition and not yet taken.
type feed struct {
	budget *budget
	leave  func()
	ready  chan struct{} // holds a token after something was put
	freed  chan struct{} // holds a token after something was taken

	mu     sync.Mutex
	queue  []slice
	held   int // bytes of the queue, of the slice taken last, and of the window
	taken  int // bytes of the slice taken last
	err    error
	closed bool
}

// slice is a batch and the bytes that it takes of the budget.
type slice struct {
	consumer.Batch
	bytes int
}

func sliceOf(n int) (s slice) {
	s.Messages = make([]consumer.Message, 0, n)
	return s
}

func (s *slice) add(m consumer.Message, bytes int) {
	m.Mark = fingerprint(m.Time)
	s.Messages, s.Next, s.Mark = append(s.Messages, m), m.Offset+1, m.Mark
	s.bytes += bytes
}

// keep reduces the slice to the messages in [first, end).
func (s *slice) keep(first, end int) {
	s.Messages = s.Messages[first:end]
	if n := len(s.Messages); n > 0 {
		s.Next, s.Mark = s.Messages[n-1].Offset+1, s.Messages[n-1].Mark
	}
}

func newFeed(b *budget) *feed {
	return &feed{budget: b, leave: b.join(), ready: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// window reserves bytes for a request. It returns zero if the feed holds enough.
func (f *feed) window() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0
	}
	w := f.budget.window(f.held)
	f.held += w
	return w
}

func (f *feed) done(window int) { f.hold(-window) }

// put queues a slice. Messages that arrive one by one while earlier messages are being applied
// become one slice, and so one transaction.
func (f *feed) put(s slice) {
	f.hold(s.bytes)
	most := f.budget.slice()
	f.mu.Lock()
	if n := len(f.queue); n > 0 && f.queue[n-1].takes(s, most) {
		last := &f.queue[n-1]
		last.Messages = append(last.Messages, s.Messages...)
		last.Next, last.Mark, last.End, last.bytes = s.Next, s.Mark, s.End, last.bytes+s.bytes
	} else {
		f.queue = append(f.queue, s)
	}
	f.mu.Unlock()
	waits.Notify(f.ready)
}

func (s slice) takes(next slice, most int) bool {
	return len(s.Messages)+len(next.Messages) <= mostSlice && s.bytes+next.bytes <= most
}

// fail ends the feed with an error, behind the queued slices.
func (f *feed) fail(err error) {
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	waits.Notify(f.ready)
}

// take returns the next slice, or the error behind the last one. It releases the bytes of the slice
// that was taken before.
func (f *feed) take() (*consumer.Batch, error) {
	f.mu.Lock()
	before := f.taken
	f.taken = 0
	var batch *consumer.Batch
	if len(f.queue) > 0 {
		s := f.queue[0]
		f.queue[0] = slice{}
		f.queue = f.queue[1:]
		f.taken = s.bytes
		batch = &s.Batch
	}
	err := f.err
	f.mu.Unlock()
	if before > 0 {
		f.hold(-before)
		waits.Notify(f.freed)
	}
	if batch != nil {
		return batch, nil
	}
	return nil, err
}

func (f *feed) hold(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.held += bytes
	f.budget.give(-bytes)
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.budget.give(f.held)
	f.held, f.queue, f.closed = 0, nil, true
	f.leave()
}

const (
	// leastWindow is what a partition may always request, so that none waits for another.
	leastWindow = 32 << 10

	// overhead is the memory of a message beside its content, in bytes.
	overhead = 512

	// mostMessages limits one request. The server is idle between two requests: with 1000, bench's
	// row nats/read was 0.75 instead of 0.94.
	mostMessages = 4000
)

// budget limits the bytes that all partitions of a stream read ahead together.
type budget struct {
	limit int

	mu      sync.Mutex
	readers int
	held    int
}

func newBudget(limit int) *budget { return &budget{limit: limit} }

func (b *budget) join() (leave func()) {
	b.add(1)
	return func() { b.add(-1) }
}

func (b *budget) add(readers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers += readers
}

// window reserves bytes for a request. It returns zero if the partition holds its share.
func (b *budget) window(held int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	half := b.half()
	if held > half {
		return 0
	}
	w := max(min(half, b.limit-b.held), leastWindow)
	b.held += w
	return w
}

// half returns half of a partition's share. b.mu is held.
func (b *budget) half() int { return b.limit / max(b.readers, 1) / 2 }

// slice is half of the largest window, so that reading continues while a slice is applied.
func (b *budget) slice() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.half(), leastWindow) / 2
}

// give gives bytes back; a negative number takes more.
func (b *budget) give(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= bytes
}

// messagesIn returns how many empty messages would fill a window, up to mostMessages.
func messagesIn(window int) int { return min(max(window/overhead, 1), mostMessages) }

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
