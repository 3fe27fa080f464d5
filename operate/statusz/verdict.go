package statusz

import (
	"slices"

	"github.com/epochfence/epochfence/operate/stats"
)

// This file decides the one word at the top of the page.

type verdict struct{ Class, Word, Text string }

// judge returns the line at the top of the page.
func judge(v *view, s *stats.Stats) verdict {
	count := map[string]int{}
	for _, r := range v.Rows {
		count[r.Class]++
	}
	person := slices.ContainsFunc(v.Halts, func(h halt) bool { return h.Operator })
	switch {
	case v.hung > 0:
		return verdict{"halted", "Hung", plural(v.hung, "call hangs", "calls hang") + "; restart the process. The stacks are below."}
	case len(v.deserted) > 0:
		return nobody(v.deserted)
	case count["halted"] > 0 && person:
		return verdict{"halted", "Needs an operator", plural(count["halted"], "partition has", "partitions have") + " halted; what to do is below."}
	case count["halted"] > 0:
		return verdict{"halted", "Halted", plural(count["halted"], "partition has", "partitions have") + " halted."}
	case len(v.Failed) > 0:
		return verdict{"waiting", "Incomplete", "Not everything could be read."}
	case s != nil && !isMember(s):
		return verdict{"waiting", "Not a member", "This process is not a member of its group."}
	case count["waiting"] > 0:
		return verdict{"waiting", "Waiting", plural(count["waiting"], "partition is", "partitions are") + " not claimed, or not moving."}
	case count["paused"] > 0:
		return verdict{"paused", "Paused", plural(count["paused"], "partition is", "partitions are") + " paused; the others continue."}
	default:
		return verdict{"well", "Well", "Nothing has halted."}
	}
}

func isMember(s *stats.Stats) bool {
	joined, _ := s.Status().Joined()
	return joined
}
