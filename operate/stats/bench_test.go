package stats_test

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate/stats"
)

// BenchmarkATransaction is what the observer adds to a transaction of one partition.
func BenchmarkATransaction(b *testing.B) {
	s := stats.New()
	s.Observe(consumer.Granted{Partition: at})
	s.Observe(consumer.Claimed{Fence: fence(1, 0, "a")})
	for n := epoch.Offset(0); b.Loop(); n += 10 {
		s.Observe(consumer.Transacted{Partitions: 1, Messages: 10, Took: time.Millisecond, Handling: time.Millisecond / 2})
		s.Observe(consumer.Advanced{Partition: at, Epoch: 1, From: n, To: n + 10, Messages: 10, Bytes: 100, Oldest: time.Now(), Newest: time.Now()})
	}
}

// BenchmarkRead is a scrape of a process with as many partitions as it gives series of.
func BenchmarkRead(b *testing.B) {
	s := stats.New()
	for n := range int32(500) {
		p := epoch.Partition{Group: "g", Topic: "t", Number: n}
		s.Observe(consumer.Granted{Partition: p})
		s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 1}})
	}
	for b.Loop() {
		s.Read()
	}
}
