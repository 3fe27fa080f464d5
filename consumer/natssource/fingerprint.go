package natssource

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// fingerprint returns the mark by which a fence recognises a message, because a log may be written
// again with the same sequences. The mark is a hash, of 31 bits, of the time in nanoseconds at
// which the server stored the message. All replicas and backups of a stream have the same time.
func fingerprint(stored time.Time) epoch.Mark {
	const golden = 0x9e3779b97f4a7c15 // spreads neighbours; Fibonacci hashing
	return epoch.Mark(uint64(stored.UnixNano()) * golden >> 33)
}
