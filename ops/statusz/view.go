package statusz

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/ops/operate"
	"github.com/epochfence/epochfence/ops/remedies"
	"github.com/epochfence/epochfence/ops/stats"
)

// What the templates are given: texts, ready to be escaped.

type view struct {
	Title, At string
	Verdict   verdict
	Failed    []string // what could not be read
	Figures   []figure
	Halts     []halt

	Process, Group bool // which of the two is shown
	Rows           []row
	Unlisted       int

	Moments   []moment
	Decisions []moment

	Dead, Outbox table
	MayAct       bool
}

// verdict is the state of everything in a word.
type verdict struct{ Class, Word, Text string }

type figure struct{ Name, Value, Note string }

// halt is why partitions of this process stand still, and what to do.
type halt struct {
	Word       string
	Person     bool
	Means, Do  string
	Commands   []command
	Partitions []halted
	More       int
}

type command struct{ Line, For string }

type halted struct{ Partition, Next, Since, Retry, Error string }

// row is a partition.
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
	trouble                 int // rows with more of it come first where not all are listed
}

type moment struct{ At, Class, Kind, Partition, Epoch, Text string }

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

// maxRows is how many partitions a page lists.
const maxRows = 1000

// stillAfter is for how long a partition with messages to apply may not move before the
// page calls that so.
const stillAfter = 3 * time.Second

// look reads what there is to show.
func (h *Handler) look(group *groupReading, failed error, mayAct bool) *view {
	now := time.Now()
	v := &view{Title: h.Title, At: now.UTC().Format(time.DateTime) + " UTC", Process: h.Stats != nil, Group: h.Operator != nil, MayAct: mayAct}
	var held []stats.Partition
	if h.Stats != nil {
		held = h.Stats.Partitions()
		h.ownFigures(v, held)
		v.Halts = halts(held, now)
		v.Moments = h.moments(h.Stats.Timeline(), now)
	}
	if failed != nil {
		v.Failed = append(v.Failed, "The sink could not be read: "+show(failed.Error()))
	}
	if group == nil {
		group = &groupReading{}
	}
	if group.err != nil {
		text := "The sink could not be read: " + show(group.err.Error()) + "."
		if !group.at.IsZero() {
			text += " What is below of other processes was read " + age(now.Sub(group.at)) + " ago."
		}
		v.Failed = append(v.Failed, text)
	}
	if group.endsErr != nil {
		v.Failed = append(v.Failed, "Where the logs end is not known: "+show(group.endsErr.Error()))
	}
	h.rows(v, held, group, now)
	h.groupFigures(v, group)
	v.Decisions = h.decisions(group.decisions, now)
	h.deadLetters(v, group, now)
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
	lag, states := int64(0), map[consumer.State]int{}
	for _, p := range held {
		states[p.State]++
		lag += max(p.Lag, 0)
	}
	messages, bytes := h.Stats.Rates()
	v.Figures = append(v.Figures, member,
		figure{"Partitions held here", thousands(int64(len(held))), fmt.Sprintf("%d claimed, %d not claimed, %d halted",
			states[consumer.StateClaimed], states[consumer.StateHeld], states[consumer.StateHalted])},
		figure{"To apply here", thousands(lag), "messages, as far as read"},
		figure{"Applied here", perSecond(messages) + " a second", bytesPerSecond(bytes) + " a second"})
}

func (h *Handler) groupFigures(v *view, g *groupReading) {
	if h.Operator == nil || g.at.IsZero() {
		return
	}
	owners, dead, paused := map[string]bool{}, int64(0), 0
	for _, p := range g.partitions {
		if p.Epoch > 0 && !p.Operated() {
			owners[p.Owner] = true
		}
		if p.Standing.Mode != epoch.Running {
			paused++
		}
		dead += p.DeadLetters
	}
	v.Figures = append(v.Figures, figure{"Partitions of the group", thousands(int64(len(g.partitions))),
		plural(len(owners), "owner", "owners") + ", " + plural(paused, "paused", "paused")})
	if g.ends != nil {
		behind := int64(0)
		for _, p := range g.partitions {
			behind += max(int64(g.ends[p.Fence.Partition]-p.Next), 0)
		}
		v.Figures = append(v.Figures, figure{"To apply in the group", thousands(behind), "messages"})
	}
	if g.rates != nil {
		sum := 0.0
		for _, r := range g.rates {
			sum += r
		}
		v.Figures = append(v.Figures, figure{"Applied by the group", perSecond(sum) + " a second", "over about 10 s"})
	}
	v.Figures = append(v.Figures, figure{Name: "Dead letters", Value: thousands(dead)})
}

// halts gathers halted partitions by reason, those that need a person first.
func halts(held []stats.Partition, now time.Time) []halt {
	var hs []halt
	at := map[consumer.Reason]int{}
	for _, p := range held {
		if p.State != consumer.StateHalted || p.Reason == consumer.ReasonPaused {
			continue
		}
		i, known := at[p.Reason]
		if !known {
			i, at[p.Reason] = len(hs), len(hs)
			hs = append(hs, remedy(p.Reason, p.Partition))
		}
		if len(hs[i].Partitions) == listed {
			hs[i].More++
			continue
		}
		one := halted{Partition: show(p.Partition.String()), Next: offset(p.Next), Since: age(now.Sub(p.Since)), Retry: "not by this process"}
		if !p.RetryAt.IsZero() {
			one.Retry = "in " + age(p.RetryAt.Sub(now))
			if !p.RetryAt.After(now) {
				one.Retry = "now"
			}
		}
		if p.Err != nil {
			one.Error = show(p.Err.Error())
		}
		hs[i].Partitions = append(hs[i].Partitions, one)
	}
	slices.SortStableFunc(hs, func(a, b halt) int {
		switch {
		case a.Person == b.Person:
			return 0
		case a.Person:
			return -1
		default:
			return 1
		}
	})
	return hs
}

func remedy(r consumer.Reason, p epoch.Partition) halt {
	h := halt{Word: r.String(), Person: r.NeedsPerson()}
	if found, ok := remedies.Of(r); ok {
		h.Means, h.Do = found.Means, found.Do
		for _, c := range found.Commands {
			h.Commands = append(h.Commands, command{c.On(p), c.For})
		}
	}
	return h
}

func offset(o epoch.Offset) string {
	if o < 0 {
		return "–"
	}
	return thousands(int64(o))
}

// rows has a row for each partition that this process or the sink knows.
func (h *Handler) rows(v *view, held []stats.Partition, g *groupReading, now time.Time) {
	here := map[epoch.Partition]stats.Partition{}
	for _, p := range held {
		here[p.Partition] = p
	}
	recorded := map[halting]string{}
	for _, d := range slices.Backward(g.decisions) {
		if d.Kind == epoch.DecidedHalt {
			recorded[halting{d.Partition, d.Epoch, d.To}] = d.Reason
		}
	}
	for _, p := range g.partitions {
		r := h.groupRow(p, recorded, g)
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

// halting is a halt that a consumer has recorded: it holds while the partition has the same
// epoch and position.
type halting struct {
	partition epoch.Partition
	epoch     epoch.Epoch
	next      epoch.Offset
}

// groupRow is what the sink knows of a partition.
func (h *Handler) groupRow(p operate.Partition, halts map[halting]string, g *groupReading) row {
	r := named(p.Fence.Partition)
	r.Next = offset(p.Next)
	r.Dead = thousands(p.DeadLetters)
	if p.Epoch > 0 {
		owner := h.owner(p.Owner)
		r.Epoch, r.Owner, r.OwnerURL, r.OwnerNote = thousands(int64(p.Epoch)), owner.Name, owner.URL, owner.Note
	}
	if !p.AdvancedAt.IsZero() {
		r.Advanced = age(p.Now.Sub(p.AdvancedAt)) + " ago"
	}
	behind := int64(-1)
	if end, known := g.ends[p.Fence.Partition]; known {
		behind = max(int64(end-p.Next), 0)
		r.Lag = thousands(behind)
	}
	if speed, known := g.rates[p.Fence.Partition]; known {
		r.Speed = perSecond(speed)
	}
	since := p.ClaimedAt
	if p.AdvancedAt.After(since) {
		since = p.AdvancedAt
	}
	why, halted := halts[halting{p.Fence.Partition, p.Epoch, p.Next}]
	switch {
	case p.Standing.Mode != epoch.Running:
		r.state("paused", "paused", fmt.Sprintf("since %s, by %s: %s", clock(p.Standing.Since, p.Now), show(p.Standing.By), show(p.Standing.Reason)), 2)
	case p.Epoch == 0:
		r.state("waiting", "never claimed", "", 1)
	case halted && behind != 0:
		r.state("halted", "halted", show(why), 3)
	case p.Operated():
		r.state("waiting", "no owner since", "no process has claimed it after what was done by "+show(p.Owner[len(epoch.OperatorPrefix):]), 2)
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

// add adds what this process knows of a partition that it holds. It knows better whether it
// has halted.
func (r *row) add(p stats.Partition, now time.Time) {
	r.Here = true
	if p.Lag >= 0 && r.Lag == "–" {
		r.Lag = thousands(p.Lag)
	}
	r.Speed = perSecond(p.MessagesPerSecond)
	if r.Next == "–" {
		r.Next = offset(p.Next)
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
	case p.State == consumer.StateHeld:
		note := "for " + age(now.Sub(p.Since))
		if p.Err != nil {
			note += ": " + show(p.Err.Error())
		}
		r.state("waiting", "not claimed", note, 2)
	case r.State == "":
		r.state("well", "claimed", "", 0)
		if p.Lag == 0 {
			r.State = "caught up"
		}
	}
}

func (h *Handler) moments(ms []stats.Moment, now time.Time) (shown []moment) {
	for _, m := range ms[:min(len(ms), listed)] {
		one := moment{At: clock(m.At, now), Kind: m.Kind.String(), Class: classOf(m.Kind)}
		if m.Partition != (epoch.Partition{}) {
			one.Partition = show(m.Partition.String())
		}
		if m.Epoch > 0 {
			one.Epoch = thousands(int64(m.Epoch))
		}
		switch m.Kind {
		case stats.Takeover:
			one.Text = fmt.Sprintf("from %s, which had it under epoch %d; goes on at %s", h.owner(m.OtherOwner).Name, m.OtherEpoch, offset(m.Next))
		case stats.Refused:
			one.Text = fmt.Sprintf("at %s; %s has it under epoch %d", offset(m.Next), h.owner(m.OtherOwner).Name, m.OtherEpoch)
		case stats.ReceiverRefused:
			one.Text = fmt.Sprintf("the receiver knows epoch %d", m.OtherEpoch)
		case stats.Halted:
			one.Text = fmt.Sprintf("at %s, %s: %s", offset(m.Next), m.Reason, show(m.Text))
		case stats.GoesOn:
			one.Text = fmt.Sprintf("at %s, after %s", offset(m.Next), m.Reason)
		case stats.Lost:
			one.Text = fmt.Sprintf("at %s, %s: %s", offset(m.Next), m.Reason, show(m.Text))
		case stats.Joined, stats.Left, stats.WentBack, stats.Overdue:
			one.Text = show(m.Text)
		}
		shown = append(shown, one)
	}
	return shown
}

func classOf(k stats.MomentKind) string {
	switch k {
	case stats.Halted, stats.WentBack, stats.Overdue:
		return "halted"
	case stats.Refused, stats.ReceiverRefused, stats.Lost, stats.Left:
		return "waiting"
	default:
		return "well"
	}
}

// decisions are those of the sink's log, of the partitions that the page shows.
func (h *Handler) decisions(ds []epoch.Decision, now time.Time) (shown []moment) {
	for i, d := range ds {
		if len(shown) == listed {
			break
		}
		if h.Filter.Group != "" && h.Filter.Group != d.Partition.Group || h.Filter.Topic != "" && h.Filter.Topic != d.Partition.Topic {
			continue
		}
		one := moment{At: clock(d.At, now), Kind: string(d.Kind), Class: "well", Partition: show(d.Partition.String())}
		if d.Epoch > 0 {
			one.Epoch = thousands(int64(d.Epoch))
		}
		switch d.Kind {
		case epoch.DecidedClaim:
			one.Kind, one.Text = h.claimed(d, before(ds[i+1:], d))
		case epoch.DecidedStale:
			one.Kind, one.Class = "refused", "waiting"
			one.Text = h.owner(d.Owner).Name + ": " + show(d.Reason)
		case epoch.DecidedHalt:
			one.Kind, one.Class = "halted", "halted"
			one.Text = h.owner(d.Owner).Name + ", at " + offset(d.To) + ": " + show(d.Reason)
		case epoch.DecidedLoss, epoch.DecidedInDoubt:
			one.Class = "waiting"
			one.Text = h.owner(d.Owner).Name + ": " + show(d.Reason)
		default:
			one.Text = show(d.Reason)
			if d.From != d.To && d.From >= 0 {
				one.Text = "from " + offset(d.From) + " to " + offset(d.To) + "; " + one.Text
			}
			if d.By != "" {
				one.Text = "by " + show(d.By) + ": " + one.Text
			}
		}
		shown = append(shown, one)
	}
	return shown
}

// before is the decision before d that swapped in a claim of its partition, among older
// ones, newest first; zero if it is not among them.
func before(older []epoch.Decision, d epoch.Decision) epoch.Decision {
	for _, o := range older {
		if o.Partition == d.Partition && o.Kind.Swaps() {
			return o
		}
	}
	return epoch.Decision{}
}

// claimed tells of a claim and the one before it, which may not be known.
func (h *Handler) claimed(d, before epoch.Decision) (kind, text string) {
	at := ", goes on at " + offset(d.To)
	switch {
	case d.From < 0:
		return "first claim", "by " + h.owner(d.Owner).Name + ", begins at " + offset(d.To)
	case before.Epoch == 0:
		return "claim", "by " + h.owner(d.Owner).Name + at
	case before.Owner == d.Owner:
		return "claim", h.owner(d.Owner).Name + " again" + at
	case before.Kind != epoch.DecidedClaim:
		return "claim", "by " + h.owner(d.Owner).Name + ", after what " + show(before.By) + " did" + at
	default:
		return "takeover", "by " + h.owner(d.Owner).Name + ", from " + h.owner(before.Owner).Name + at
	}
}

func (h *Handler) deadLetters(v *view, g *groupReading, now time.Time) {
	if h.Operator == nil {
		return
	}
	v.Dead.Shown = true
	if len(g.dead) == listed {
		v.Dead.About = fmt.Sprintf("The oldest %d. Contents of messages are not shown here: epochfence deadletters show ID.", listed)
	}
	for _, l := range g.dead {
		one := item{ID: l.ID, Partition: show(l.Message.Partition.String()), What: "offset " + offset(l.Message.Offset), At: clock(l.At, now), Why: show(l.Error)}
		switch {
		case l.Requested:
			one.State = "replay asked for by " + show(l.RequestedBy)
		case l.ReplayError != "":
			one.State = "replay failed: " + show(l.ReplayError)
		}
		v.Dead.Rows = append(v.Dead.Rows, one)
	}
}

func (h *Handler) outbox(v *view, held []stats.Partition, g *groupReading, now time.Time) {
	entries, oldest, more := 0, time.Time{}, ""
	for _, p := range held {
		entries += p.Outbox.Entries
		if p.Outbox.More {
			more = "at least "
		}
		if at := p.Outbox.Oldest; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	if entries > 0 || h.Outbox != nil && h.Stats != nil {
		f := figure{Name: "Outbox here", Value: more + thousands(int64(entries)), Note: "entries to send"}
		if !oldest.IsZero() {
			f.Note += ", the oldest for " + age(now.Sub(oldest))
		}
		v.Figures = append(v.Figures, f)
	}
	if h.Outbox == nil {
		return
	}
	v.Outbox.Shown = true
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

// judge is what is read first.
func judge(v *view, s *stats.Stats) verdict {
	count := map[string]int{}
	for _, r := range v.Rows {
		count[r.Class]++
	}
	person := slices.ContainsFunc(v.Halts, func(h halt) bool { return h.Person })
	switch {
	case count["halted"] > 0 && person:
		return verdict{"halted", "Needs a person", plural(count["halted"], "partition has", "partitions have") + " halted; what to do is below."}
	case count["halted"] > 0:
		return verdict{"halted", "Halted", plural(count["halted"], "partition has", "partitions have") + " halted."}
	case len(v.Failed) > 0:
		return verdict{"waiting", "Not all is known", "Something could not be read."}
	case s != nil && !isMember(s):
		return verdict{"waiting", "Not a member", "This process is not a member of its group."}
	case count["waiting"] > 0:
		return verdict{"waiting", "Waiting", plural(count["waiting"], "partition is", "partitions are") + " not claimed, or not moving."}
	case count["paused"] > 0:
		return verdict{"paused", "Paused", plural(count["paused"], "partition is", "partitions are") + " paused; the others go on."}
	default:
		return verdict{"well", "Well", "Nothing has halted."}
	}
}

func isMember(s *stats.Stats) bool {
	joined, _ := s.Status().Joined()
	return joined
}
