package kafkasource

import (
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// topicPartition is a partition of a topic.
type topicPartition struct {
	topic  string
	number int32
}

// feed is what one Read has coming: the queue between the goroutine that polls
// and the one that reads. Each Read has a feed of its own, so that nothing left
// over from an earlier one can get into it.
type feed struct {
	topicPartition
	partition epoch.Partition
	id        [16]byte      // of the topic; records under another one are refused
	ready     chan struct{} // holds a token when there may be something to take

	mu     sync.Mutex
	chunks []chunk
	queued int64 // cost of chunks
	inUse  int64 // cost of what was taken last, and is being applied
	next   int64 // the offset after everything that was fetched
	epoch  int32 // leader epoch of what is before next, or -1
	after  int64 // the offset after the last message taken
	end    int64 // of the log, for who reads what is committed; 0 if not known
	err    error // what comes after the chunks; nothing is added any more
	paused bool  // set by the poller, cleared by whoever makes room
	low    int64 // the cost at which there is room again
	fresh  bool  // nothing was applied or pushed yet: the log may begin above next

	recycle  bool               // a record is put back into kgo's pool once it is a message
	messages []consumer.Message // of the batch taken last; the next one is made in their place

	// The rest belongs to the poller.
	stumbled time.Time // when the errors began that pass by themselves
	latest   time.Time // when the newest of them came
	wait     *backoff.Backoff
	shut     bool // nobody reads any more
}

// chunk is what one fetch brought, or what is left of that. Its memory is one piece, and a
// record keeps all of it.
type chunk struct {
	records []*kgo.Record
	cost    int64
	next    int64 // the offset after it, behind any transaction markers
	epoch   int32 // leader epoch of what is before next
}

// taken is what a chunk costs while its messages are in use.
func (c chunk) taken() int64 { return c.cost + int64(len(c.records))*messageCost }

func newFeed(p topicPartition, id [16]byte, from epoch.Fence) *feed {
	return &feed{
		topicPartition: p, partition: from.Partition, id: id, ready: make(chan struct{}, 1),
		next: int64(from.Next), epoch: int32(from.Mark), after: int64(from.Next), fresh: !from.Applied,
	}
}

// What a record takes beside its bytes, in bytes.
const (
	recordCost  = 168 // a kgo.Record, and the pointer to it
	messageCost = 160 // a Message, once it is taken
)

// leastPiece is how many records are taken at once, if there are so many, whatever they
// cost: each batch has a cost of its own.
const leastPiece = 1024

// at is where to fetch on.
func (f *feed) at() kgo.Offset {
	f.mu.Lock()
	defer f.mu.Unlock()
	return kgo.NewOffset().At(f.next).WithEpoch(f.epoch)
}

// push adds what a fetch brought, up to a fault. If it is little of a large response, it
// is copied.
func (f *feed) push(p *kgo.FetchPartition, little bool) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.end = max(f.end, p.LastStableOffset)
	keep := p.Records[:0]
	before := f.next
	var cost int64
	for _, r := range p.Records {
		if r.Offset < f.next {
			err = &misfitError{consumer.ErrOutOfOrder, f.next, r.Offset}
			break
		}
		// Between two offsets the broker leaves out what compaction and
		// aborted transactions took. Not so below the start of the log.
		if r.Offset > f.next && p.LogStartOffset > f.next && !f.fresh {
			err = &misfitError{consumer.ErrOffsetExpired, f.next, p.LogStartOffset}
			break
		}
		f.next, f.epoch, f.fresh = r.Offset+1, r.LeaderEpoch, false
		if r.Attrs.IsControl() { // a transaction marker is a position, not a message
			continue
		}
		keep = append(keep, r)
		cost += recordCost + int64(len(r.Key)+len(r.Value))
		for _, h := range r.Headers {
			cost += 2*headerCost + int64(len(h.Key)+len(h.Value))
		}
	}
	clear(p.Records[len(keep):])
	if little {
		own(keep)
	}
	if f.next > before {
		f.add(chunk{keep, cost, f.next, f.epoch})
	}
	return err
}

// own copies what records are slices of, if that is the response: it stays in memory as a
// whole, with what it has of other partitions, as long as one of them does. The batches of
// a response that are compressed are not slices of it.
func own(rs []*kgo.Record) {
	size := 0 // at most
	for _, r := range rs {
		size += len(r.Key) + len(r.Value)
		for _, h := range r.Headers {
			size += len(h.Value) // the keys are strings, which are copies
		}
	}
	buf := make([]byte, 0, size)
	clone := func(b []byte) []byte {
		switch {
		case b == nil:
			return nil
		case len(b) == 0:
			return []byte{}
		}
		from := len(buf)
		buf = append(buf, b...)
		return buf[from:len(buf):len(buf)]
	}
	for _, r := range rs {
		if r.Attrs.CompressionType() != 0 {
			continue
		}
		r.Key, r.Value = clone(r.Key), clone(r.Value)
		for i := range r.Headers {
			r.Headers[i].Value = clone(r.Headers[i].Value)
		}
	}
}

// holds is what the feed costs now.
func (f *feed) holds() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queued + f.inUse
}

// add queues c. One without records moves the end of the one before it: they
// cost nothing, so that nothing else bounds how many there are.
func (f *feed) add(c chunk) {
	if last := len(f.chunks) - 1; last >= 0 && len(c.records) == 0 {
		f.chunks[last].next, f.chunks[last].epoch = c.next, c.epoch
	} else {
		f.chunks = append(f.chunks, c)
	}
	f.queued += c.cost
	f.wake()
}

const headerCost = 40 // of a kgo.RecordHeader, in bytes; a Message has its own

// fail ends the feed with err after what is queued, or at once where what is
// queued is no longer in the log.
func (f *feed) fail(err error, drop bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	if drop {
		f.chunks, f.queued = nil, 0
	}
	f.wake()
}

func (f *feed) wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// take lets go of what was taken before and returns what is queued, up to about
// limit in cost, or a quarter, or nil. With nothing queued it returns the error the feed
// has ended with, or nothing at all. Resume says that the feed was paused and has room.
func (f *feed) take(limit int64) (batch *consumer.Batch, err error, resume bool) { //nolint:revive // the error is not the outcome
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inUse = 0
	most := max(limit, f.queued/4)
	f.split(most)
	n, records, queued := 0, 0, f.queued
	for n < len(f.chunks) && (n == 0 || f.inUse+f.chunks[n].taken() <= most) {
		f.inUse += f.chunks[n].taken()
		queued -= f.chunks[n].cost
		records += len(f.chunks[n].records)
		n++
	}
	f.queued = queued
	f.reuse(records, limit)
	if n > 0 {
		batch = f.batch(f.chunks[:n])
		f.after = int64(batch.Next)
		clear(f.chunks[:n])
		f.chunks = f.chunks[n:]
	} else {
		f.chunks = nil
		err = f.err
	}
	if f.paused && f.err == nil && f.queued+f.inUse <= f.low {
		f.paused, resume = false, true
	}
	return batch, err, resume
}

// split makes two of the first chunk if taking it costs more than most, so that the memory
// of the messages stays small enough to be used again.
func (f *feed) split(most int64) {
	if len(f.chunks) == 0 || f.chunks[0].taken() <= most {
		return
	}
	c := &f.chunks[0]
	n := max(int(int64(len(c.records))*most/c.taken()), leastPiece)
	if n >= len(c.records) {
		return
	}
	last := c.records[n-1]
	first := chunk{c.records[:n], c.cost * int64(n) / int64(len(c.records)), last.Offset + 1, last.LeaderEpoch}
	c.records, c.cost = c.records[n:], c.cost-first.cost
	f.chunks = slices.Insert(f.chunks, 0, first)
}

// reuse makes the memory of the messages that were taken before ready for n others. It is
// given up if it is too small, or if it is far too large and costs more than limit, which
// is what messages in use may cost anyhow.
func (f *feed) reuse(n int, limit int64) {
	clear(f.messages)
	f.messages = f.messages[:0]
	if c := cap(f.messages); c < n || c > 2*n && int64(c)*messageCost > limit {
		f.messages = make([]consumer.Message, 0, n)
	}
}

// batch makes one of what some fetches brought. The position after it is behind
// the transaction markers at its end. Otherwise lag would not come down to zero,
// and a topic without new messages would seem to have lost some once retention
// takes the markers.
func (f *feed) batch(chunks []chunk) *consumer.Batch {
	last := chunks[len(chunks)-1]
	b := &consumer.Batch{Next: epoch.Offset(last.next), Mark: epoch.Mark(last.epoch)}
	if f.end > 0 {
		b.End = epoch.Offset(max(f.end, last.next))
	}
	ms := f.messages
	for _, c := range chunks {
		for _, r := range c.records {
			mark := epoch.Mark(r.LeaderEpoch)
			if mark != b.Mark && b.Marks == nil {
				b.Marks = slices.Repeat([]epoch.Mark{b.Mark}, len(ms)) // of those so far
			}
			if b.Marks != nil {
				b.Marks = append(b.Marks, mark)
			}
			ms = append(ms, f.message(r))
		}
	}
	if f.messages = ms; len(ms) > 0 {
		b.Messages = ms
	}
	return b
}

// pause notes that the poller stops fetching for this feed, if it holds at least
// so much. It reports false if it does not, by now, or if that was noted before.
// Whoever takes next then knows to have it resumed.
func (f *feed) pause(least int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := f.queued + f.inUse
	if f.paused || held < least {
		return false
	}
	f.paused, f.low = true, held/2
	return true
}

// unpause notes that fetching continues. It reports false if nobody had stopped.
func (f *feed) unpause() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.paused && f.err == nil
	f.paused = f.paused && !was
	return was
}

// How long an error that passes by itself may last before Read reports it: a
// topic that is not known, less than a leader that is being elected.
const (
	unknownPatience = 3 * time.Second
	errorPatience   = 20 * time.Second
	mostStumble     = time.Second
)

// stumble takes note of an error that passes by itself. It returns how long to
// wait before the next fetch, or false if it has lasted too long.
func (f *feed) stumble(unknown bool) (wait time.Duration, goOn bool) {
	now := time.Now()
	if now.Sub(f.latest) > 5*mostStumble { // a new one
		f.stumbled, f.wait = now, backoff.New(leastPause, mostStumble)
	}
	f.latest = now
	patience := errorPatience
	if unknown {
		patience = unknownPatience
	}
	return f.wait.Next(), now.Sub(f.stumbled) < patience
}

// taken is the offset after the last message that Read has yielded.
func (f *feed) taken() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after
}

// message makes one of a record, which must not be looked at any more.
func (f *feed) message(r *kgo.Record) consumer.Message {
	m := consumer.Message{Partition: f.partition, Offset: epoch.Offset(r.Offset), Key: r.Key, Value: r.Value, Time: r.Timestamp, Context: r.Context}
	if len(r.Headers) > 0 {
		m.Headers = make([]consumer.Header, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i] = consumer.Header{Key: h.Key, Value: h.Value}
		}
	}
	if f.recycle {
		m.Context = nil // it is the pool's
		r.Recycle()
	}
	return m
}
