package consumer_test

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// Whoever has more to apply when a transaction ends is in the next one: a round trip is paid for all.
func TestPartitionsThatHaveMoreToApplyShareEachTransaction(t *testing.T) {
	const partitions, messages = 8, 2000
	inBubble(t, partitions, func(r *rig) {
		for n := range int32(partitions) {
			r.fill(n, messages)
		}
		p := r.start("a", each(record), options{}, r.commitsTake(5*time.Millisecond))
		r.pass(time.Minute)
		p.end()
		ts := seen[consumer.Transacted](p)
		if len(ts) < 5 {
			t.Fatalf("%d transactions show nothing", len(ts))
		}
		shared, middle := 0, ts[1:len(ts)-2] // the first begins with whoever comes first
		for _, e := range middle {
			shared += e.Partitions
		}
		if mean := float64(shared) / float64(len(middle)); mean < 0.65*partitions { // half of that, if nobody is awaited
			t.Errorf("%d transactions have %.1f of %d partitions on average", len(middle), mean, partitions)
		}
		for n := range int32(partitions) {
			r.wantNext(n, messages)
		}
	})
}
