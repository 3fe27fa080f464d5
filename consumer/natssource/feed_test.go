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
	b := newBudget(4 * mostSlice * overhead)
	f := newFeed(b)
	defer f.close()
	put := func(bytes int, ms ...consumer.Message) {
		var s slice
		for _, m := range ms {
			s.add(m, 0)
		}
		s.bytes = bytes
		f.put(s)
	}
	take := func(want ...int) {
		t.Helper()
		for _, n := range want {
			got, err := f.take()
			if got == nil {
				got = &consumer.Batch{}
			}
			if err != nil || len(got.Messages) != n {
				t.Fatalf("%d messages, %v; want %d", len(got.Messages), err, n)
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

	// A position behind the last message goes with it, whatever follows.
	put(2, at(4))
	f.put(slice{consumer.Batch{Next: 6, Mark: 1}, 2})
	got, err := f.take()
	if err != nil || got.Next != 6 || got.Mark != 1 || got.Position(1) != (epoch.Position{Offset: 6, Mark: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
	f.put(slice{consumer.Batch{Next: 8, Mark: 1}, 2})
	put(2, at(9))
	put(2, at(10))
	take(2, 0)
	if b.held != 0 {
		t.Errorf("%d bytes are still held", b.held)
	}
}
