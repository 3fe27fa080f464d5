package epoch

import (
	"strings"
	"time"
)

// Process is the sign of life that a consumer gives its sink: who it is, and when it was
// seen last. People and monitoring tell from it a partition that is claimed by a process
// that is gone from one whose owner is there. Nothing else depends on it.
//
// That a process is alive says that it runs and reaches the sink. Its handler may hang, and
// it may not reach its broker: those have signs of their own.
type Process struct {
	// Run is of one call of consumer.Run, random: a process that restarts has another one.
	Run string

	Group string

	// Name is what the owners that its leases have begin with; see [Process.Owns].
	Name string

	Host    string // of a pod, its name
	PID     int
	Version string // of the program: its main module, as it was built

	// Every is how long the process waits between two signs of life.
	Every time.Duration

	// Since is when the first sign came, and Seen when the last one did. They and Now,
	// which is when it was read, are times of the sink's database.
	Since, Seen, Now time.Time
}

// Alive reports whether the last sign of life is not older than three times the wait for the next one.
func (p Process) Alive() bool { return p.Now.Sub(p.Seen) <= 3*p.Every }

// Owns reports whether the owner that a fence names is the process.
func (p Process) Owns(owner string) bool {
	return p.Name != "" && (owner == p.Name || strings.HasPrefix(owner, p.Name+"/"))
}
