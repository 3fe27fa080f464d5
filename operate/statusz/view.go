package statusz

import (
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file puts the overview together, with the one word at its top and the figures above the table (how
// far this process and the group are behind), from the statistics of this process and a reading of the
// group. It reads nothing itself.

// The templates get finished texts and only escape them.

type view struct {
	Title, At string
	Verdict   verdict
	Failed    []string // reads that failed
	Figures   []figure
	Halts     []halt

	Process, Group bool // which of the two the page shows
	Rows           []row
	Unlisted       int

	Moments   []moment
	Decisions []moment

	hung     int      // calls that hang in this process
	deserted []string // groups without a process

	Outbox  table
	Letters []table // those that are dead, and those that are deferred
	MayAct  bool
}

type figure struct{ Name, Value, Note string }

const maxRows = 1000

// stillAfter is how long a partition with messages to apply may stay at its position before the
// page reports it.
const stillAfter = 3 * time.Second

func (h *Handler) look(group *groupReading, failed error, mayAct bool) *view {
	now := time.Now()
	v := &view{Title: h.Title, At: now.UTC().Format(time.DateTime) + " UTC", Process: h.Stats != nil, Group: h.Operator != nil, MayAct: mayAct}
	if group == nil {
		group = &groupReading{}
	}
	js := jobsOf(group.partitions...)
	var held []stats.Partition
	if h.Stats != nil {
		held = h.Stats.Partitions()
		h.ownFigures(v, held)
		v.Halts = append(js.hung(h.Stats.Status().Hung(), now), js.halts(held, now)...)
		v.hung = len(h.Stats.Status().Hung())
		v.Moments = h.moments(h.Stats.Timeline(), js, now)
	}
	if failed != nil {
		v.Failed = append(v.Failed, "The sink could not be read: "+show(failed.Error()))
	}
	if group.err != nil {
		text := "The sink could not be read: " + show(group.err.Error()) + "."
		if !group.at.IsZero() {
			text += " The data of other processes below was read " + age(now.Sub(group.at)) + " ago."
		}
		v.Failed = append(v.Failed, text)
	}
	if group.logsErr != nil {
		v.Failed = append(v.Failed, "How far behind the group is, is not known: "+show(group.logsErr.Error()))
	}
	h.rows(v, held, group, now)
	v.deserted = group.deserted(held)
	h.groupFigures(v, group)
	v.Decisions = h.decisions(h.selected(group.decisions), js, now)
	h.deadLetters(v, group, js, now)
	h.outbox(v, held, group, now)
	v.Verdict = judge(v, h.Stats)
	return v
}

func (h *Handler) ownFigures(v *view, held []stats.Partition) {
	joined, cause := h.Stats.Status().Joined()
	member := figure{Name: "Member of the group", Value: "yes"}
	if !joined {
		member.Value = "no"
		if cause != nil {
			member.Note = show(cause.Error())
		}
	}
	var lag sum
	states, paused := map[consumer.State]int{}, 0
	for _, p := range held {
		if p.State == consumer.StateHalted && p.Reason == consumer.ReasonPaused {
			paused++
		} else {
			states[p.State]++
		}
		lag.add(p.Lag, p.Lag >= 0)
	}
	messages, bytes := h.Stats.Rates()
	v.Figures = append(v.Figures, member,
		figure{"Partitions held here", thousands(int64(len(held))), fmt.Sprintf("%d claimed, %d not claimed, %d halted, %d paused",
			states[consumer.StateClaimed], states[consumer.StateAssigned], states[consumer.StateHalted], paused)},
		figure{"To apply here", lag.text(), lag.note("messages, as of the last read")},
		figure{"Applied here", perSecond(messages) + " a second", bytesPerSecond(bytes) + " a second"})
}

func (h *Handler) groupFigures(v *view, g *groupReading) {
	if h.Operator == nil || g.at.IsZero() {
		return
	}
	owners, dead, paused := map[string]bool{}, int64(0), 0
	for _, p := range g.partitions {
		if p.Epoch > 0 && operate.OperatorOf(p.Owner) == "" {
			owners[p.Owner] = true
		}
		if p.Pause.Mode != epoch.Running {
			paused++
		}
		dead += p.DeadLetters
	}
	v.Figures = append(v.Figures, figure{"Partitions of the group", thousands(int64(len(g.partitions))),
		plural(len(owners), "owner", "owners") + ", " + plural(paused, "paused", "paused")}, g.processes())
	if g.logs != nil {
		var behind sum
		for _, p := range g.partitions {
			log, known := g.logs[p.Fence.Partition]
			behind.add(log.Lag, known)
		}
		v.Figures = append(v.Figures, figure{"To apply in the group", behind.text(), behind.note("messages")})
	}
	if g.rates != nil {
		sum := 0.0
		for _, r := range g.rates {
			sum += r
		}
		v.Figures = append(v.Figures, figure{"Offsets that the group has passed", perSecond(sum) + " a second", "over about 10 s; gaps between messages count"})
	}
	v.Figures = append(v.Figures, figure{Name: "Dead letters", Value: thousands(dead)})
}

type sum struct {
	of             int64
	known, unknown int
}

func (s *sum) add(n int64, known bool) {
	if !known {
		s.unknown++
		return
	}
	s.known++
	s.of += n
}

func (s *sum) text() string {
	if s.known == 0 && s.unknown > 0 {
		return "–"
	}
	return thousands(s.of)
}

func (s *sum) note(what string) string {
	if s.unknown == 0 {
		return what
	}
	return what + "; without " + plural(s.unknown, "partition whose lag is", "partitions whose lag is") + " not known"
}

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
