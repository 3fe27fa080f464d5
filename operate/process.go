package operate

import (
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides from a sign of life whether a process is alive, and which fences are its own.
// Consumers write the signs, and no claim depends on them.

// Process is the sign of life that a consumer records in its sink. Operators and monitoring use it
// to see whether the owner of a partition is alive. Nothing else depends on it.
//
// A live process runs and reaches the sink. Problems says what else is wrong.
type Process struct {
	// Run is a random id of one call of consumer.Run.
	Run string

	Group string

	// Name is the prefix of the owners of its leases; see [Process.Owns].
	Name string

	Host    string // in Kubernetes, the name of the pod
	PID     int
	Version string // of the program's main module, from its build information

	// Problems has a line for each problem that the process itself reports: a call that hangs, which
	// begins with the partition, a colon and a space, and that it is no member of its group.
	Problems string

	// Every is the time between two signs of life.
	Every time.Duration

	// Since and Seen are the times of the first and the last sign of life. Now is the time of the
	// read. All three are times by the sink's clock.
	Since, Seen, Now time.Time
}

// Alive reports whether the last sign of life is at most 3×Every old.
func (p Process) Alive() bool { return p.Now.Sub(p.Seen) <= 3*p.Every }

// Hangs returns the line of Problems about a call that hangs under the claim in f, or the empty
// string. The process has then given the partition up.
func (p Process) Hangs(f epoch.Fence) string {
	for line := range strings.Lines(p.Problems) {
		if strings.HasPrefix(line, f.Partition.String()+": ") && strings.Contains(line, fmt.Sprintf(", epoch %d,", f.Epoch)) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// Owns reports whether owner, the Owner of a fence, names the process.
func (p Process) Owns(owner string) bool {
	return p.Name != "" && (owner == p.Name || strings.HasPrefix(owner, p.Name+"/"))
}
