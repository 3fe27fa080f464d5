package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/remedies"
)

// This file has the commands list, describe and owners: states, lag, what to do about halts and pauses,
// claims and signs of life. view.go decides the states. Package remedies has the texts.

func (a *app) list() *cobra.Command {
	var which chosen
	var onlyPaused bool
	c := &cobra.Command{
		Use:   "list [PARTITION...]",
		Short: "List partitions: state, epoch, next offset, owner",
		Long: `List partitions: state, epoch, next offset, owner.

States, from the fence and the audit log:
  claimed    its owner is alive
  orphaned   its owner is not alive, and nobody has claimed it since
  hung       its owner is alive and has given it up, because a call hangs
  halted     it does not advance: see describe and explain
  paused     an operator has paused it
  waiting    an operator has acted, and no owner has claimed it since
  unclaimed  it was never claimed
  elsewhere  it is in another database of the same sink
  unreadable a newer version has written its fence, or something else has:
             see describe
  lock       it is a lock of package lease: OWNER had it last, and NEXT counts
             its transactions

ADVANCED is the time since the position moved. DEAD is the number of dead letters.`,
		RunE: func(c *cobra.Command, names []string) error { return a.runList(c.Context(), which, onlyPaused, names) },
	}
	which.add(c.Flags())
	c.Flags().BoolVar(&onlyPaused, "paused", false, "only those that are paused")
	return c
}

func (a *app) runList(ctx context.Context, which chosen, onlyPaused bool, names []string) error {
	ps, vs, err := a.views(ctx, which, names)
	if err != nil {
		return err
	}
	t := newTable("PARTITION", "STATE", ">EPOCH", ">NEXT", ">ADVANCED", ">DEAD", "OWNER")
	shown := []partitionView{}
	for i, v := range vs {
		if onlyPaused && v.State != paused {
			continue
		}
		shown = append(shown, v)
		t.row(v.Name, v.State, v.Epoch, nextOf(v.State, ps[i].Fence), ago(ps[i].Now, ps[i].AdvancedAt), v.DeadLetters, dash(v.Owner))
	}
	return a.show(map[string]any{"partitions": shown}, func() { t.print(a.out) })
}

func (a *app) describe() *cobra.Command {
	var which chosen
	c := &cobra.Command{
		Use:   "describe [PARTITION...]",
		Short: "Show lag, and why partitions are halted",
		Long: `Show partitions with their logs: lag, begin and end of the log, and the reason of
halts.

Each fence names its log, which the command reads from Kafka (--kafka) or NATS
(--nats). END is the offset after the last message that can be read: on Kafka the last
stable offset, so open transactions do not count. LAG 0+9 has nine offsets in and
behind an open transaction. On NATS offsets are the stream's
sequences, and LAG counts the partition's own messages.

FENCED is yes if the group's member that has the partition has claimed it, and no if
another member has it: a consumer without a fence, or one that has not claimed it
yet. It is - while the group rebalances, and on NATS, which does not say.

OWNER shows whether the process that has claimed the partition is alive. Processes
record a sign of life every 15 s, or once in the lease's term if that is longer
(40.5 s with Kafka's defaults). After three missing ones a process counts as dead.
A process that has ended in good order has none. See owners for problems that a
process itself reports.`,
		RunE: func(c *cobra.Command, names []string) error { return a.runDescribe(c.Context(), which, names) },
	}
	which.add(c.Flags())
	return c
}

type describedView struct {
	partitionView
	Begin     *int64           `json:"log_begin"`
	End       *int64           `json:"log_end"`
	Lag       *int64           `json:"lag"`
	Open      *openTransaction `json:"open_transaction,omitempty"` // beyond log_end
	LogNow    string           `json:"log_now,omitempty"`          // if it is not the fence's log
	SourceNow string           `json:"source_now,omitempty"`       // if it is not the fence's lease issuer

	// Committed is the offset that the group has committed, for a partition without a claim.
	Committed *int64 `json:"committed,omitempty"`

	LogError string `json:"log_error,omitempty"`

	Fenced *bool `json:"fenced"` // null if it is not known whether the member that has the partition has claimed it
}

func (a *app) runDescribe(ctx context.Context, which chosen, names []string) error {
	ps, vs, err := a.views(ctx, which, names)
	if err != nil {
		return err
	}
	es := a.extents(ctx, operate.Fences(ps))
	ds := []describedView{}
	fenced, without := a.fenced(ctx, ps, es)
	t := newTable("PARTITION", "STATE", ">EPOCH", ">NEXT", ">BEGIN", ">END", ">LAG", "FENCED", "OWNER")
	for i, v := range vs {
		d, is := describedView{partitionView: v}, "-"
		if owns, known := fenced[ps[i].Fence.Partition]; known && v.State != elsewhere && v.State != unread {
			d.Fenced, is = &owns, map[bool]string{true: "yes", false: "no"}[owns]
		}
		next, begin, end, lag := nextOf(v.State, ps[i].Fence), "-", "-", "-"
		switch e := es[i]; {
		case v.State == elsewhere, v.State == unread, !hasLog(ps[i].Fence):
		case e.err != nil:
			d.LogError = e.err.Error()
		case e.differs(ps[i].Fence):
			d.LogNow, d.SourceNow = now(e.log, ps[i].Log), now(e.source, ps[i].Source)
		default:
			d.Begin, d.End, d.Lag = number(int64(e.begin)), number(int64(e.end)), number(e.lag)
			begin, end, lag = text(e.begin), text(e.end), text(e.lag)
			if d.Open = e.open; e.open != nil {
				lag += fmt.Sprintf("+%d", e.open.Offsets)
			}
			if e.committed > 0 {
				d.Committed, next = number(int64(e.committed)), text(e.committed)
			}
		}
		ds = append(ds, d)
		t.row(v.Name, v.State, v.Epoch, next, begin, end, lag, is, v.ownerText())
	}
	if len(names) > 0 {
		without = nil
	}
	return a.show(map[string]any{"partitions": ds}, func() {
		t.print(a.out)
		said := map[string]bool{}
		for i, d := range ds {
			a.notes(ps[i], d, said)
		}
		for _, text := range without {
			a.say("\n%s", printable(text))
		}
	})
}

// fenced reports for each partition that a member of its group has whether that one has claimed it, and which other
// partitions of these topics members have. Both are empty where the broker does not say.
func (a *app) fenced(ctx context.Context, ps []operate.Partition, es []extent) (fenced map[epoch.Partition]bool, without []string) {
	fences, topics, asked := map[epoch.Partition]epoch.Fence{}, map[string]bool{}, map[[2]string]bool{}
	for _, p := range ps {
		fences[p.Fence.Partition], topics[p.Fence.Partition.Topic] = p.Fence, true
	}
	fenced = map[epoch.Partition]bool{}
	for i, p := range ps {
		of := [2]string{whereIs(p.Fence), p.Fence.Partition.Group}
		b, err := a.brokerOf(p.Fence)
		if err != nil || es[i].err != nil || asked[of] { // a broker that is out of reach would cost a timeout for each group
			continue
		}
		asked[of] = true
		known, err := b.groupOf(ctx, p.Fence.Partition.Group)
		if err != nil || known.rebalancing {
			continue
		}
		for _, m := range known.members {
			for _, has := range m.Partitions {
				if f, is := fences[has]; is {
					fenced[has] = m.Owns(f)
				} else if topics[has.Topic] {
					without = append(without, fmt.Sprintf("%s has no fence here, and member %s of the group, at %s, has it", has, m.ID, m.Host))
				}
			}
		}
	}
	slices.Sort(without)
	return fenced, without
}

// notes prints what does not fit into the table. said has the reasons whose remedy was printed for an
// earlier partition.
func (a *app) notes(p operate.Partition, d describedView, said map[string]bool) {
	switch d.State {
	case paused:
		a.say("\n%s is paused since %s, by %s: %s\n  epochfence resume %s%s", d.Name, stamp(p.Pause.Since), printable(d.By), printable(d.Reason), shellQuote(d.Name), forReal)
	case halted:
		a.say("\n%s has halted at %s:\n  %s", d.Name, stamp(*d.Since), printable(d.Reason))
		a.remedy(p, d.Reason, said)
	case hanging:
		a.say("\n%s is given up, and no process has claimed it since:\n  %s", d.Name, printable(d.Reason))
		a.remedy(p, consumer.ReasonHung.String(), said)
	case unread:
		a.say("\n%s: %s", d.Name, printable(d.Reason))
	case unclaimed:
		if d.Committed != nil {
			a.say("\n%s was never claimed. Others have committed offset %d for its group, and the first claim takes over from there unless consumer.Options.Start says something else",
				d.Name, *d.Committed)
		}
	default:
	}
	if d.Open != nil {
		a.say("\n%s: %s", d.Name, printable(d.Open.String()))
	}
	if d.LogError != "" {
		a.say("\n%s: %s", d.Name, printable(d.LogError))
	}
	if d.LogNow != "" {
		a.say("\n%s: the fence is of log %s; now there is log %s: see epochfence rebase", d.Name, printable(d.Log), printable(d.LogNow))
	}
	if d.SourceNow != "" {
		a.say("\n%s: the fence is leased from %s, and here leases come from %s: see epochfence rebase", d.Name, printable(d.Source), printable(d.SourceNow))
	}
}

// now returns what there is now, if the fence has something else.
func now(there, fence string) string {
	if there == fence {
		return ""
	}
	return there
}

// remedy prints what to do, with the partition and its position filled in, once for each reason.
func (a *app) remedy(p operate.Partition, halt string, said map[string]bool) {
	r, ok := remedies.For(halt)
	if !ok {
		return
	}
	reason := r.Reason.String()
	if said[reason] {
		a.say("  %s: what to do is above", reason)
		return
	}
	said[reason] = true
	text := r.Text(p.Fence.Partition)
	if r.Reason == consumer.ReasonMessageFailed || r.Reason == consumer.ReasonOnFailureFailed || r.Reason == consumer.ReasonHung {
		text = strings.ReplaceAll(text, "OFFSET", fmt.Sprint(int64(p.Next))) // the message at the position is the one
	}
	a.say("%s", indented(text))
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

func number(n int64) *int64 { return &n }

func (a *app) owners() *cobra.Command {
	var which chosen
	c := &cobra.Command{
		Use:   "owners",
		Short: "List who has claimed partitions",
		Long: `List who has claimed partitions, as the fences have it, and which processes
are alive, those without a partition among them. ADVANCED is how long ago the
position of one of its partitions was moved, by this owner or by an earlier one,
SEEN how long ago the process gave a sign of life, which it does every 15 s, or
once in the lease's term if that is longer. After three missing ones it counts as
dead. Below the table are the problems that processes report. HOST is a pod's name, VERSION the
program's as it was built.

A process stays in the list while a fence names it. One that crashed stays for
7 days, or until a process with its name starts. One that ended in good order
has no SEEN, and leaves the list when no fence names it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runOwners(c.Context(), which) },
	}
	which.add(c.Flags())
	return c
}

type ownerView struct {
	Owner      string     `json:"owner"`
	Group      string     `json:"group"`
	Partitions []string   `json:"partitions"`
	ClaimedAt  *time.Time `json:"last_claimed_at"`
	AdvancedAt *time.Time `json:"last_advanced_at"`
	Alive      bool       `json:"alive"`
	Since      *time.Time `json:"since"` // of the process; null if unknown
	SeenAt     *time.Time `json:"seen_at"`
	Host       string     `json:"host"`
	PID        int        `json:"pid"`
	Version    string     `json:"version"`
	Problems   string     `json:"problems,omitempty"` // as the process reports them, a line for each

	now time.Time
}

func (o *ownerView) process(p operate.Process) {
	o.Alive, o.Since, o.SeenAt, o.now = p.Alive(), orNull(p.Since), orNull(p.Seen), p.Now
	o.Host, o.PID, o.Version, o.Problems = p.Host, p.PID, p.Version, p.Problems
}

func (a *app) runOwners(ctx context.Context, which chosen) error {
	ps, vs, err := a.views(ctx, which, nil)
	if err != nil {
		return err
	}
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	found, err := op.Processes(ctx, which.group)
	if err != nil {
		return err
	}
	owners, lives, busy := []*ownerView{}, operate.Lives(found), map[string]bool{}
	for i, v := range vs {
		if v.Epoch == 0 || isLock(ps[i].Fence) { // holders of locks give no sign of life
			continue
		}
		at := slices.IndexFunc(owners, func(o *ownerView) bool { return o.Owner == v.Owner && o.Group == v.Group })
		if at < 0 {
			at = len(owners)
			owners = append(owners, &ownerView{Owner: v.Owner, Group: v.Group, now: ps[i].Now})
			if p, known := lives.Owner(ps[i].Fence); known {
				owners[at].process(p)
				busy[p.Run] = true
			}
		}
		o := owners[at]
		o.Partitions = append(o.Partitions, v.Name)
		o.ClaimedAt, o.AdvancedAt = later(o.ClaimedAt, v.ClaimedAt), later(o.AdvancedAt, v.AdvancedAt)
	}
	for _, p := range lives {
		if !busy[p.Run] {
			idle := &ownerView{Owner: p.Name, Group: p.Group, Partitions: []string{}}
			idle.process(p)
			owners = append(owners, idle)
		}
	}
	slices.SortStableFunc(owners, func(x, y *ownerView) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Owner, y.Owner))
	})
	t := newTable("GROUP", "OWNER", ">PARTITIONS", ">CLAIMED", ">ADVANCED", "ALIVE", ">SEEN", "HOST", "VERSION")
	for _, o := range owners {
		alive := map[bool]string{true: "yes", false: "no"}[o.Alive]
		if operate.OperatorOf(o.Owner) != "" {
			alive = "-"
		}
		t.row(o.Group, o.Owner, len(o.Partitions), agoOf(o.now, o.ClaimedAt), agoOf(o.now, o.AdvancedAt), alive, agoOf(o.now, o.SeenAt), dash(o.Host), dash(o.Version))
	}
	return a.show(map[string]any{"owners": owners}, func() {
		t.print(a.out)
		for _, o := range owners {
			for problem := range strings.Lines(o.Problems) {
				a.say("\n%s says: %s", printable(o.Owner), printable(strings.TrimSpace(problem)))
			}
		}
	})
}

func later(x, y *time.Time) *time.Time {
	if x == nil || y != nil && y.After(*x) {
		return y
	}
	return x
}

func agoOf(now time.Time, t *time.Time) string {
	if t == nil {
		return "-"
	}
	return ago(now, *t)
}
