package natssource

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// fingerprint is what a message is recognised by, in the fence, when its log may
// have been written again under the same sequences: 31 bits of the time, in
// nanoseconds, at which the server stored it. All replicas of a stream have the
// same, and so has a backup.
func fingerprint(stored time.Time) epoch.Mark {
	const golden = 0x9e3779b97f4a7c15 // spreads neighbours; Fibonacci hashing
	return epoch.Mark(uint64(stored.UnixNano()) * golden >> 33)
}
