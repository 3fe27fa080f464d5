package show

import (
	"cmp"
	"slices"
)

// Place is a message's partition and offset.
type Place struct {
	Partition int32
	Offset    int64
}

// Effect is one effect in the database.
type Effect struct {
	Message int // its number, from 0
	Place
	Epoch int64 // of the claim that applied it; 0 in the baseline
}

// Audit compares the sent messages with the database. Add the effects in the order in which the
// workers applied them.
type Audit struct {
	sent   []Place
	times  []int32
	epochs []int64         // of each message's first effect
	last   map[int32]int64 // the highest offset applied so far
	f      Findings
}

// NewAudit begins an audit of messages numbered from 0. sent has the place of each.
func NewAudit(sent []Place) *Audit {
	return &Audit{
		sent: sent, times: make([]int32, len(sent)), epochs: make([]int64, len(sent)),
		last: map[int32]int64{}, f: Findings{Sent: len(sent)},
	}
}

// Findings is the result of an audit.
type Findings struct {
	Sent      int // messages
	Effects   int // of any kind
	Doubled   int // effects beyond a message's first
	Lost      int // messages without an effect
	Alien     int // effects of unknown messages, or with a wrong place
	Disorder  int // effects after one of a later message of their partition
	Regressed int // messages with a lower epoch than the message before them in their partition
}

// Exact reports whether each message had exactly one effect, in order, and epochs never fell.
func (f Findings) Exact() bool {
	return f.Sent == f.Effects && f.Doubled+f.Lost+f.Alien+f.Disorder+f.Regressed == 0
}

// Add adds the next effect.
func (a *Audit) Add(e Effect) {
	a.f.Effects++
	if e.Message < 0 || e.Message >= len(a.sent) || a.sent[e.Message] != e.Place {
		a.f.Alien++
		return
	}
	if a.times[e.Message]++; a.times[e.Message] == 1 {
		a.epochs[e.Message] = e.Epoch
	}
	if last, ok := a.last[e.Partition]; ok && e.Offset < last {
		a.f.Disorder++
	} else {
		a.last[e.Partition] = e.Offset
	}
}

// Findings returns the result.
func (a *Audit) Findings() Findings {
	f := a.f
	var applied []int
	for i, n := range a.times {
		if n == 0 {
			f.Lost++
			continue
		}
		f.Doubled += int(n) - 1
		applied = append(applied, i)
	}
	slices.SortFunc(applied, func(i, j int) int {
		return cmp.Or(cmp.Compare(a.sent[i].Partition, a.sent[j].Partition), cmp.Compare(a.sent[i].Offset, a.sent[j].Offset))
	})
	for k := 1; k < len(applied); k++ {
		before, this := applied[k-1], applied[k]
		if a.sent[before].Partition == a.sent[this].Partition && a.epochs[this] < a.epochs[before] {
			f.Regressed++
		}
	}
	return f
}
