package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (a *app) list() *cobra.Command {
	var which chosen
	var onlyPaused bool
	c := &cobra.Command{
		Use:   "list [PARTITION...]",
		Short: "List partitions: state, epoch, next offset, owner",
		Long: `List partitions: state, epoch, next offset, owner.

States, as the fence and the audit log tell them:
  claimed    somebody has it, and is alive
  orphaned   who has claimed it is not alive, and nobody has taken it since
  halted     its owner has halted it: see describe, explain
  paused     an operator has paused it
  waiting    an operator has acted, and no owner has followed yet
  unclaimed  nobody ever had it
  elsewhere  another database keeps it, of those that are one sink

ADVANCED is how long ago the position moved. DEAD is how many dead letters
there are.`,
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
		t.row(v.Name, v.State, v.Epoch, v.Next, ago(ps[i].Now, ps[i].AdvancedAt), v.DeadLetters, dash(v.Owner))
	}
	return a.show(map[string]any{"partitions": shown}, func() { t.print(a.out) })
}
