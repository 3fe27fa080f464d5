package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) owners() *cobra.Command {
	var which chosen
	c := &cobra.Command{
		Use:   "owners",
		Short: "List who has claimed partitions",
		Long: `List who has claimed partitions, as the fences have it: a process that is gone
is there until another one has claimed what it had. ADVANCED is how long ago
the owner moved a position.`,
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

	now time.Time
}

func (a *app) runOwners(ctx context.Context, which chosen) error {
	ps, vs, err := a.views(ctx, which, nil)
	if err != nil {
		return err
	}
	owners := []*ownerView{}
	for i, v := range vs {
		if v.Epoch == 0 {
			continue
		}
		at := slices.IndexFunc(owners, func(o *ownerView) bool { return o.Owner == v.Owner && o.Group == v.Group })
		if at < 0 {
			at = len(owners)
			owners = append(owners, &ownerView{Owner: v.Owner, Group: v.Group, now: ps[i].Now})
		}
		o := owners[at]
		o.Partitions = append(o.Partitions, v.Name)
		o.ClaimedAt, o.AdvancedAt = later(o.ClaimedAt, v.ClaimedAt), later(o.AdvancedAt, v.AdvancedAt)
	}
	slices.SortStableFunc(owners, func(x, y *ownerView) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Owner, y.Owner))
	})
	t := newTable("GROUP", "OWNER", ">PARTITIONS", ">CLAIMED", ">ADVANCED")
	for _, o := range owners {
		t.row(o.Group, o.Owner, len(o.Partitions), agoOf(o.now, o.ClaimedAt), agoOf(o.now, o.AdvancedAt))
	}
	return a.show(map[string]any{"owners": owners}, func() { t.print(a.out) })
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
