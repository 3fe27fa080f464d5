package natssource

import "sync"

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
