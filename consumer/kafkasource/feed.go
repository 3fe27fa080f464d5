package kafkasource

import (
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides which records of a fetch are delivered (R10), and holds them until Read takes
// them. fetch.go decides when to fetch.

type topicPartition struct {
	topic  string
	number int32
}

// feed is the queue between the goroutine that polls and the goroutine of one Read. Each Read has
// its own feed, so that it gets no records of an earlier Read.
type feed struct {
	topicPartition
	partition epoch.Partition
	id        [16]byte      // of the topic; records with another id are refused
	ready     chan struct{} // full when there may be something to take

	mu     sync.Mutex
	chunks []chunk
	queued int64 // cost of chunks
	inUse  int64 // cost of the batch taken last, which is being applied
	next   int64 // the offset after everything that was fetched
	epoch  int32 // leader epoch of the record before next, or -1
	after  int64 // the offset after the last message taken
	end    int64 // last stable offset of the log; 0 if not known
	err    error // comes after the chunks; nothing is added any more
	paused bool  // set by the poller, cleared by the one that frees space
	low    int64 // the cost at which there is space again
	fresh  bool  // nothing was applied or pushed yet: the log may begin above next

	recycle  bool               // records are put back into kgo's pool when they have become messages
	messages []consumer.Message // of the batch taken last; the next batch reuses their memory

	// Only the poller uses these.
	stumbled time.Time // when the transient errors began
	latest   time.Time // when the last of them came
	wait     *waits.Backoff
	shut     bool // nobody reads any more
}

// chunk is the result of one fetch, or the rest of it. Each record keeps the memory of the whole
// chunk.
type chunk struct {
	records []*kgo.Record
	cost    int64
	next    int64 // the offset after it, behind any transaction markers
	epoch   int32 // leader epoch of the record before next
}

// taken returns the cost of a chunk while its messages are in use.
func (c chunk) taken() int64 { return c.cost + int64(len(c.records))*messageCost }

func newFeed(p topicPartition, id [16]byte, from epoch.Fence) *feed {
	return &feed{
		topicPartition: p, partition: from.Partition, id: id, ready: make(chan struct{}, 1),
		next: int64(from.Next), epoch: int32(from.Mark), after: int64(from.Next), fresh: !from.Applied,
	}
}

// Memory of a record in addition to its bytes, in bytes.
const (
	recordCost  = 168 // a kgo.Record, and the pointer to it
	messageCost = 160 // a Message, once it is taken
)

// leastPiece is the minimum number of records in a piece that split makes, whatever they cost,
// because each batch has a cost of its own.
const leastPiece = 1024

func (f *feed) at() kgo.Offset {
	f.mu.Lock()
	defer f.mu.Unlock()
	return kgo.NewOffset().At(f.next).WithEpoch(f.epoch)
}

// push adds the records of a fetch, up to the first one with a wrong offset. If little is set, they
// are a small part of a large response, and push copies them.
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
		// A gap between two offsets comes from compaction or aborted transactions. A gap below the
		// start of the log comes from retention.
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

// own copies the bytes of records that are slices of the response. Otherwise one of these records
// would keep the whole response in memory, with the records of other partitions. Records of a
// compressed batch are not slices of the response.
func own(rs []*kgo.Record) {
	size := 0 // an upper bound
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

func (f *feed) holds() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queued + f.inUse
}

// add queues c. A chunk without records only moves the end of the chunk before it: such chunks cost
// nothing, so the budget would not limit their number.
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

// fail ends the feed with err after the queued chunks. If drop is set, it removes these, because
// they are no longer in the log.
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
	waits.Notify(f.ready)
}

// take releases the batch taken before and returns the next one, or nil if nothing is queued. The
// batch costs up to about limit, or a quarter of the queue if that is more. When nothing is queued,
// take returns the error that the feed has ended with. resume says that the feed was paused and has
// space.
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

// split splits the first chunk in two if taking it costs more than most, so that the memory of the
// messages stays small enough for reuse.
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

// reuse prepares the memory of the messages taken before for n others. It allocates new memory if
// the old memory is too small, or if it is far too large and costs more than limit, the allowed
// cost of messages in use.
func (f *feed) reuse(n int, limit int64) {
	if c := cap(f.messages); c < n || c > 2*n && int64(c)*messageCost > limit {
		f.messages = make([]consumer.Message, n)
		return
	}
	clear(f.messages[min(n, len(f.messages)):])
	f.messages = f.messages[:n]
}

// batch returns a batch of the chunks. Its Next is behind the transaction markers at its end.
// Otherwise lag would not fall to zero, and when retention deletes the markers, a topic without new
// messages would seem to have lost some.
func (f *feed) batch(chunks []chunk) *consumer.Batch {
	last := chunks[len(chunks)-1]
	b := &consumer.Batch{Next: epoch.Offset(last.next), Mark: epoch.Mark(last.epoch)}
	if f.end > 0 {
		b.End = epoch.Offset(max(f.end, last.next))
	}
	ms := f.messages
	for _, c := range chunks {
		for i, r := range c.records {
			f.set(&ms[i], r)
		}
		ms = ms[len(c.records):]
	}
	if len(f.messages) > 0 {
		b.Messages = f.messages
	}
	return b
}

// pause records that the poller stops fetching for this feed, so that a later take resumes it. It
// returns false if the feed holds less than least by now, or is paused already.
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

// unpause records that fetching continues. It returns false if the feed was not paused.
func (f *feed) unpause() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.paused && f.err == nil
	f.paused = f.paused && !was
	return was
}

const (
	unknownPatience = 3 * time.Second  // how long a topic may be unknown before Read returns the error
	errorPatience   = 20 * time.Second // the same for other transient errors, such as a leader election
	mostStumble     = time.Second      // between two fetches
)

// stumble records a transient error. It returns the wait before the next fetch, or false if the
// errors have lasted too long.
func (f *feed) stumble(unknown bool) (wait time.Duration, goOn bool) {
	now := time.Now()
	if now.Sub(f.latest) > 5*mostStumble { // a new series of errors
		f.stumbled, f.wait = now, waits.New(leastPause, mostStumble)
	}
	f.latest = now
	patience := errorPatience
	if unknown {
		patience = unknownPatience
	}
	return f.wait.Next(), now.Sub(f.stumbled) < patience
}

// taken returns the offset after the last message that Read has yielded.
func (f *feed) taken() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after
}

// set makes m the message of r, and every field of m: it may be another message. The caller must
// not use r afterwards.
func (f *feed) set(m *consumer.Message, r *kgo.Record) {
	m.Partition, m.Offset, m.Mark = f.partition, epoch.Offset(r.Offset), epoch.Mark(r.LeaderEpoch)
	m.Key, m.Value, m.Headers, m.Time = r.Key, r.Value, nil, r.Timestamp
	m.Context, m.Under, m.Replay = r.Context, nil, 0
	if len(r.Headers) > 0 {
		m.Headers = make([]consumer.Header, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i] = consumer.Header{Key: h.Key, Value: h.Value}
		}
	}
	if f.recycle {
		m.Context = nil // the record goes back to the pool
		r.Recycle()
	}
}
