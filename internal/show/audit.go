package show

import (
	"cmp"
	"slices"
)

// Effect is one effect in the database.
type Effect struct {
	Message int   // its number, from 0; -1 if it is none that was sent
	Group   int32 // within which order matters: the partition, or the account
	Offset  int64 // the order in the group
	Epoch   int64 // of the claim that applied it; 0 in the baseline
}

// Audit compares the sent messages with the database. Add the effects in the order in which the
// workers applied them.
type Audit struct {
	first []Effect // of each message
	times []int
	last  map[int32]int64 // the highest offset applied so far
	f     Findings
}

// NewAudit begins an audit of so many messages.
func NewAudit(messages int) *Audit {
	return &Audit{first: make([]Effect, messages), times: make([]int, messages), last: map[int32]int64{}, f: Findings{Sent: messages}}
}

// Findings is the result of an audit.
type Findings struct {
	Sent      int  // messages
	Effects   int  // of any kind
	Doubled   int  // effects beyond a message's first
	Lost      int  // messages without an effect
	Alien     int  // effects of unknown messages
	Disorder  int  // effects after one of a later message of their group
	Regressed int  // messages with a lower epoch than the message before them in their group
	Epochs    bool // the effects have epochs
}

// Exact reports whether each message had exactly one effect, in order, and epochs never fell.
func (f Findings) Exact() bool {
	return f.Once() && f.Disorder+f.Regressed == 0
}

// Once reports whether each message had exactly one effect.
func (f Findings) Once() bool {
	return f.Sent == f.Effects && f.Doubled+f.Lost+f.Alien == 0
}

// Rows returns the rows of a table, the first of which is labelled effects.
func (f Findings) Rows(effects string) []Row {
	regressed := Thousands(f.Regressed)
	if !f.Epochs {
		regressed = "-"
	}
	return []Row{
		{effects, Thousands(f.Effects)},
		{"  doubled", Thousands(f.Doubled)},
		{"  lost", Thousands(f.Lost)},
		{"  out of order", Thousands(f.Disorder)},
		{"  of no message sent", Thousands(f.Alien)},
		{"  epoch lower than before", regressed},
	}
}

// Add adds the next effect.
func (a *Audit) Add(e Effect) {
	a.f.Effects++
	a.f.Epochs = a.f.Epochs || e.Epoch > 0
	if e.Message < 0 || e.Message >= len(a.first) {
		a.f.Alien++
		return
	}
	if a.times[e.Message]++; a.times[e.Message] == 1 {
		a.first[e.Message] = e
	}
	if last, ok := a.last[e.Group]; ok && e.Offset < last {
		a.f.Disorder++
	} else {
		a.last[e.Group] = e.Offset
	}
}

// Findings returns the result.
func (a *Audit) Findings() Findings {
	f := a.f
	var applied []Effect
	for i, n := range a.times {
		if n == 0 {
			f.Lost++
			continue
		}
		f.Doubled += n - 1
		applied = append(applied, a.first[i])
	}
	slices.SortFunc(applied, func(a, b Effect) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Offset, b.Offset))
	})
	for i := 1; i < len(applied); i++ {
		if before, this := applied[i-1], applied[i]; before.Group == this.Group && this.Epoch < before.Epoch {
			f.Regressed++
		}
	}
	return f
}
