package statusz

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file makes the rows of partitions, from what this process holds and what the sink has, and
// decides which state is shown. It also makes the tables of dead letters and of the outbox, without their
// contents. view.go has the figures above them.

type row struct {
	Partition               string
	Group, Topic            string // for links
	Number                  int32
	Class, State, Note      string
	Owner                   string
	OwnerURL, OwnerNote     string
	Here                    bool
	Epoch, Next, Lag, Speed string
	Advanced                string
	Dead                    string
	orphaned                bool // the owner is dead, as the sink records it
	trouble                 int  // if there are too many rows, higher numbers are listed first
}

func (h *Handler) rows(v *view, held []stats.Partition, g *groupReading, now time.Time) {
	here := map[epoch.Partition]stats.Partition{}
	for _, p := range held {
		here[p.Partition] = p
	}
	for _, p := range g.partitions {
		r := h.groupRow(p, g)
		if own, ok := here[p.Fence.Partition]; ok {
			r.add(own, now)
			delete(here, p.Fence.Partition)
		}
		v.Rows = append(v.Rows, r)
	}
	for _, p := range held {
		if _, left := here[p.Partition]; left {
			r := named(p.Partition)
			r.add(p, now)
			v.Rows = append(v.Rows, r)
		}
	}
	if len(v.Rows) > maxRows {
		slices.SortStableFunc(v.Rows, func(a, b row) int { return cmp.Compare(b.trouble, a.trouble) })
		v.Unlisted = len(v.Rows) - maxRows
		v.Rows = v.Rows[:maxRows]
	}
}

func named(p epoch.Partition) row {
	return row{
		Partition: show(p.String()), Group: p.Group, Topic: p.Topic, Number: p.Number,
		Epoch: "–", Next: "–", Lag: "–", Speed: "–", Advanced: "–", Owner: "–",
	}
}

func (h *Handler) groupRow(p operate.Partition, g *groupReading) row {
	r := named(p.Fence.Partition)
	r.Next = position(p.Fence, p.Next)
	r.Dead = thousands(p.DeadLetters)
	if p.Epoch > 0 {
		owner := h.owner(p.Owner)
		r.Epoch, r.Owner, r.OwnerURL, r.OwnerNote = thousands(int64(p.Epoch)), owner.Name, owner.URL, owner.Note
	}
	if !p.AdvancedAt.IsZero() {
		r.Advanced = age(p.Now.Sub(p.AdvancedAt)) + " ago"
	}
	behind := int64(-1)
	log, known := g.logs[p.Fence.Partition]
	if known {
		behind = log.Lag
		r.Lag = thousands(behind)
	}
	if speed, known := g.rates[p.Fence.Partition]; known {
		r.Speed = perSecond(speed)
	}
	since := p.ClaimedAt
	if p.AdvancedAt.After(since) {
		since = p.AdvancedAt
	}
	halt := g.halts[p.Fence.Partition]
	orphaned, sign := g.orphaned(p)
	owner, _ := g.lives.Owner(p.Fence)
	hangs := owner.Hangs(p.Fence)
	shard, elsewhere := strings.CutPrefix(p.Log, operate.RedirectLog)
	switch {
	case p.Unreadable != "":
		r.state("halted", "unreadable", show(p.Unreadable), 3)
	case elsewhere:
		r.state("well", "in another database", "shard "+show(shard), 0)
	case p.Pause.Mode != epoch.Running:
		r.state("paused", "paused", fmt.Sprintf("since %s, by %s: %s", clock(p.Pause.Since, p.Now), show(p.Pause.By), show(p.Pause.Reason)), 2)
	case p.Log == lease.FenceLog:
		r.state("well", "lock", "", 0)
	case halt != nil:
		r.state("halted", "halted", show(halt.Reason), 3)
	case operate.OperatorOf(p.Owner) == "" && log.Unfenced != "":
		r.state("waiting", "not fenced", show(log.Unfenced)+" has it, and has not claimed it", 2)
	case p.Epoch == 0:
		r.state("waiting", "never claimed", "", 1)
	case operate.OperatorOf(p.Owner) != "":
		r.state("waiting", "waiting for an owner", "no process has claimed it since "+show(operate.OperatorOf(p.Owner))+" acted", 2)
	case orphaned:
		r.orphaned = true
		r.state("waiting", "owner is not alive", sign, 2)
	case hangs != "":
		r.state("halted", "given up", show(hangs), 3)
	case behind > 0 && p.Now.Sub(since) >= stillAfter && !since.IsZero():
		r.state("waiting", "does not move", "for "+age(p.Now.Sub(since))+", with messages to apply", 2)
	case behind == 0:
		r.state("well", "caught up", "", 0)
	default:
		r.state("well", "claimed", "", 0)
	}
	return r
}

func (r *row) state(class, word, note string, trouble int) {
	r.Class, r.State, r.Note, r.trouble = class, word, note, trouble
}

// add adds the state of a partition that this process holds. It overrides the sink's on whether the
// partition has halted.
func (r *row) add(p stats.Partition, now time.Time) {
	r.Here = true
	if p.Lag >= 0 && r.Lag == "–" {
		r.Lag = thousands(p.Lag)
	}
	r.Speed = perSecond(p.MessagesPerSecond)
	if r.Next == "–" {
		r.Next = (jobs)(nil).position(p.Partition, p.Next)
	}
	if r.Epoch == "–" && p.Epoch > 0 {
		r.Epoch = thousands(int64(p.Epoch))
	}
	switch {
	case r.Class == "paused":
	case p.State == consumer.StateHalted && p.Reason == consumer.ReasonPaused:
		r.state("paused", "paused", show(p.Err.Error()), 2)
	case p.State == consumer.StateHalted:
		r.state("halted", "halted", p.Reason.String(), 3)
	case p.State == consumer.StateAssigned:
		note := "for " + age(now.Sub(p.Since))
		if p.Err != nil {
			note += ": " + show(p.Err.Error())
		}
		r.state("waiting", "not claimed", note, 2)
	case r.State == "", r.orphaned && p.State == consumer.StateClaimed: // this process holds it, and is alive
		r.state("well", "claimed", "", 0)
		if p.Lag == 0 {
			r.State = "caught up"
		}
	}
}

type table struct {
	Shown bool

	Name, Title, About string
	Rows               []item
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
	dead := table{Name: "dead", Title: "Dead letters", Shown: true, Rows: items(g.dead, js, now)}
	later := table{Name: "deferred", Title: "Deferred by their handler", Shown: len(g.deferred) > 0, Rows: items(g.deferred, js, now)}
	if len(dead.Rows) == listed {
		dead.About = fmt.Sprintf("The oldest %d. Contents of messages are not shown here: epochfence deadletters show ID.", listed)
	}
	later.About = "No dead letters: their owner replays them when they are due."
	if len(later.Rows) == listed {
		later.About += fmt.Sprintf(" The oldest %d.", listed)
	}
	v.Letters = []table{dead, later}
}

func items(ls []operate.DeadLetter, js jobs, now time.Time) (rows []item) {
	for _, l := range ls {
		one := item{ID: l.ID, Partition: show(l.Message.Partition.String()), What: js.message(l.Message), At: clock(l.At, now), Why: show(l.Error)}
		switch {
		case !l.Due.IsZero():
			one.State = "due " + clock(l.Due, now) + ", deferred " + plural(l.Deferred, "time", "times")
		case l.Requested:
			one.State = "replay requested by " + show(l.RequestedBy)
		case l.ReplayError != "":
			one.State = "replay failed: " + show(l.ReplayError)
		}
		rows = append(rows, one)
	}
	return rows
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
