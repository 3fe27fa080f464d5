package operate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides, from signs of life, whether a process is alive and which fences are its own, and
// answers for all of a sink which process owns a fence. Consumers write the signs, and no claim depends
// on them.

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

// Lives are processes, as [Operator] lists them.
type Lives []Process

// Alive returns the number of live processes of the group.
func (l Lives) Alive(group string) (n int) {
	for _, p := range l {
		if p.Group == group && p.Alive() {
			n++
		}
	}
	return n
}

// Last returns the process of the group that was seen last, if there is one.
func (l Lives) Last(group string) (Process, bool) {
	return l.last(func(p Process) bool { return p.Group == group })
}

// Owner returns the process that the fence names as its owner. If several had that name, it returns
// the one that was seen last. It returns false if the owner has shut down in good order.
func (l Lives) Owner(f epoch.Fence) (Process, bool) {
	return l.last(func(p Process) bool { return p.Group == f.Partition.Group && p.Owns(f.Owner) })
}

func (l Lives) last(is func(Process) bool) (found Process, ok bool) {
	for _, p := range l {
		if is(p) && (!ok || p.Seen.After(found.Seen)) {
			found, ok = p, true
		}
	}
	return found, ok
}

// SortProcesses sorts ps as [Operator] lists them.
func SortProcesses(ps []Process) {
	slices.SortFunc(ps, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name), a.Since.Compare(b.Since), cmp.Compare(a.Run, b.Run))
	})
}
