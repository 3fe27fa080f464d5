package operate

import (
	"strings"
	"time"
)

// Process is the sign of life that a consumer records in its sink. Operators and monitoring use it
// to see whether the owner of a partition is alive. Nothing else depends on it.
//
// A live process runs and reaches the sink. Its handler may still hang, and its broker may be out
// of reach.
type Process struct {
	// Run is a random id of one call of consumer.Run.
	Run string

	Group string

	// Name is the prefix of the owners of its leases; see [Process.Owns].
	Name string

	Host    string // in Kubernetes, the name of the pod
	PID     int
	Version string // of the program's main module, from its build information

	// Every is the time between two signs of life.
	Every time.Duration

	// Since and Seen are the times of the first and the last sign of life. Now is the time of the
	// read. All three are times by the sink's clock.
	Since, Seen, Now time.Time
}

// Alive reports whether the last sign of life is at most 3×Every old.
func (p Process) Alive() bool { return p.Now.Sub(p.Seen) <= 3*p.Every }

// Owns reports whether owner, the Owner of a fence, names the process.
func (p Process) Owns(owner string) bool {
	return p.Name != "" && (owner == p.Name || strings.HasPrefix(owner, p.Name+"/"))
}
