package main

import (
	"context"

	"github.com/spf13/cobra"
)

// This file has the command list. view.go decides the states.

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
