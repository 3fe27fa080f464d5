package natssource

import (
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// A consumer that has fallen behind messages that come one by one would
// otherwise never have two of them in a transaction, and stay behind.
func TestWhatCameOneByOneIsHandedOverTogether(t *testing.T) {
	t.Parallel()
	b := newBudget(1 << 20)
	f := newFeed(b)
	defer f.close()
	put := func(bytes int, ms ...consumer.Message) { f.put(slice{ms: ms, bytes: bytes}) }
	take := func(want ...int) {
		t.Helper()
		for _, n := range want {
			ms, err := f.take()
			if err != nil || len(ms) != n {
				t.Fatalf("%d messages, %v; want %d", len(ms), err, n)
			}
		}
	}
	at := func(offset int) consumer.Message { return consumer.Message{Offset: epoch.Offset(offset)} }
	for i := range mostSlice + 3 {
		put(overhead, at(i))
	}
	take(mostSlice, 3, 0)

	put(b.slice()-1, at(1)) // which leaves no room for another
	put(2, at(2))
	put(2, at(3))
	take(1, 2, 0)

	put(2, at(4))
	put(2, consumer.Message{Offset: 5, Control: true})
	put(2, at(6))
	put(2, at(7))
	take(1, 1, 2, 0)
	if b.held != 0 {
		t.Errorf("%d bytes are still held", b.held)
	}
}
