package operate

import (
	"strings"
	"time"
)

// Process is the sign of life that a consumer records in its sink. Operators and monitoring
// use it to tell a partition whose owner is gone from one whose owner is alive. Nothing else
// depends on it.
//
// A process is alive if it runs and reaches the sink. Its handler may hang all the same, or
// its broker may be out of reach.
type Process struct {
	// Run is a random id of one call of consumer.Run.
	Run string

	Group string

	// Name is the prefix of the owners of its leases; see [Process.Owns].
	Name string

	Host    string // of a pod, its name
	PID     int
	Version string // of the program: its main module, as it was built

	// Every is the time between two signs of life.
	Every time.Duration

	// Since and Seen are the times of the first and the last sign of life, and Now is the
	// time of the read, all by the clock of the sink's database.
	Since, Seen, Now time.Time
}

// Alive reports whether the last sign of life is not older than three times the wait for the next one.
func (p Process) Alive() bool { return p.Now.Sub(p.Seen) <= 3*p.Every }

// Owns reports whether the owner that a fence names is the process.
func (p Process) Owns(owner string) bool {
	return p.Name != "" && (owner == p.Name || strings.HasPrefix(owner, p.Name+"/"))
}
