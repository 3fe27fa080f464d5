package natssource

import "sync"

const (
	// leastWindow is what a partition may always ask for, so that none waits
	// for another.
	leastWindow = 32 << 10

	// overhead is what a message takes in memory beside its bytes.
	overhead = 512

	// mostMessages bounds one request. The server has nothing to do between two of them:
	// with 1000, bench's row nats/read had 0.75 and not 0.94.
	mostMessages = 4000
)

// budget bounds what all partitions of a source read ahead together, in bytes.
type budget struct {
	limit int

	mu      sync.Mutex
	readers int
	held    int
}

func newBudget(limit int) *budget { return &budget{limit: limit} }

// join counts a partition that is being read, until leave is called.
func (b *budget) join() (leave func()) {
	b.add(1)
	return func() { b.add(-1) }
}

func (b *budget) add(readers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers += readers
}

// window takes bytes for one request of a partition that holds so many already;
// zero, if it has its share.
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

// half is half of a partition's share. The mutex is held.
func (b *budget) half() int { return b.limit / max(b.readers, 1) / 2 }

// slice is what the messages of a slice may take together: half of the largest
// window, so that more is read while they are applied.
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

// messagesIn is how many messages are asked for with a window: no more than
// would fill it if they were empty.
func messagesIn(window int) int { return min(max(window/overhead, 1), mostMessages) }
