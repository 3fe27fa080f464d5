package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

// This file has the command owners: claims and signs of life, by owner.

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
