package show

// Effect is one effect in the database.
type Effect struct {
	Message int    // its number, from 0; -1 if it is none that was sent
	Group   string // within which order matters: the partition, or the account
	Offset  int64  // the order in the group
	Epoch   int64  // of the claim that applied it; 0 in the baseline
}

// Audit compares the sent messages with the database. Add the effects in the order in which the
// workers applied them.
type Audit struct {
	Findings // of the effects so far

	seen []bool            // the messages that have had an effect
	last map[string]Effect // of each group, that of its highest offset so far
}

// NewAudit begins an audit of so many messages.
func NewAudit(messages int) *Audit {
	return &Audit{Findings{Sent: messages, Lost: messages}, make([]bool, messages), map[string]Effect{}}
}

// Findings is the result of an audit.
type Findings struct {
	Sent      int  // messages
	Effects   int  // of any kind
	Doubled   int  // effects beyond a message's first
	Lost      int  // messages without an effect
	Alien     int  // effects of unknown messages
	Disorder  int  // effects after one of a later message of their group
	Regressed int  // effects with a lower epoch than the effect before them in their group
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
		Number(effects, f.Effects),
		Number("  doubled", f.Doubled),
		Number("  lost", f.Lost),
		Number("  out of order", f.Disorder),
		Number("  of no message sent", f.Alien),
		{"  epoch lower than before", regressed},
	}
}

// Add adds the next effect.
func (a *Audit) Add(e Effect) {
	a.Effects++
	a.Epochs = a.Epochs || e.Epoch > 0
	if e.Message < 0 || e.Message >= len(a.seen) {
		a.Alien++
		return
	}
	if a.seen[e.Message] {
		a.Doubled++
	} else {
		a.seen[e.Message] = true
		a.Lost--
	}
	last, ok := a.last[e.Group]
	if ok && e.Offset < last.Offset {
		a.Disorder++
		return
	}
	if ok && e.Epoch < last.Epoch {
		a.Regressed++
	}
	a.last[e.Group] = e
}
