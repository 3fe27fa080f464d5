package operate

import (
	"cmp"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// This file answers, from all signs of life of a sink, which process owns a fence and whether a
// group has a live process.

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
