package natssource

import (
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file keeps what was read for a partition and not yet taken, within the bytes that all
// partitions of a stream may read ahead together.

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
