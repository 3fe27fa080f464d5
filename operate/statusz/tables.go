package statusz

import (
	"fmt"
	"time"

	"github.com/epochfence/epochfence/operate/stats"
)

// This file makes the tables of dead letters and of the outbox, without their contents.

type table struct {
	Shown bool
	About string
	Rows  []item
}

type item struct {
	ID                       int64
	Partition, What, At, Why string
	State                    string
}

func (h *Handler) deadLetters(v *view, g *groupReading, js jobs, now time.Time) {
	if h.Operator == nil {
		return
	}
	v.Dead.Shown = true
	if len(g.dead) == listed {
		v.Dead.About = fmt.Sprintf("The oldest %d. Contents of messages are not shown here: epochfence deadletters show ID.", listed)
	}
	for _, l := range g.dead {
		one := item{ID: l.ID, Partition: show(l.Message.Partition.String()), What: js.message(l.Message), At: clock(l.At, now), Why: show(l.Error)}
		switch {
		case l.Requested:
			one.State = "replay requested by " + show(l.RequestedBy)
		case l.ReplayError != "":
			one.State = "replay failed: " + show(l.ReplayError)
		}
		v.Dead.Rows = append(v.Dead.Rows, one)
	}
}

func (h *Handler) outbox(v *view, held []stats.Partition, g *groupReading, now time.Time) {
	entries, oldest, more, known := 0, time.Time{}, "", false
	for _, p := range held {
		known = known || p.Outbox.Partition == p.Partition
		entries += p.Outbox.Entries
		if p.Outbox.More {
			more = "at least "
		}
		if at := p.Outbox.Oldest; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	if known {
		f := figure{Name: "Outbox here", Value: more + thousands(int64(entries)), Note: "entries to send"}
		if !oldest.IsZero() {
			f.Note += ", the oldest for " + age(now.Sub(oldest))
		}
		v.Figures = append(v.Figures, f)
	}
	v.Outbox.Shown = known || len(g.entries) > 0
	if len(g.entries) == listed {
		v.Outbox.About = fmt.Sprintf("The first %d, by their IDs.", listed)
	}
	for _, e := range g.entries {
		one := item{ID: e.ID, Partition: show(e.Partition.String()), What: show(e.Method + " " + e.URL), At: clock(e.AddedAt, now), Why: show(e.IdempotencyKey)}
		if e.RetryRequested {
			one.State = "to be tried at once"
		}
		v.Outbox.Rows = append(v.Outbox.Rows, one)
	}
}
