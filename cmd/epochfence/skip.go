package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func (a *app) skip() *cobra.Command {
	var which chosen
	var by doing
	var through int64
	c := &cobra.Command{
		Use:   "skip PARTITION --through OFFSET",
		Short: "Move past messages that are not to be applied",
		Long: `Move the position past messages that are not to be applied: those from the
position up to and with --through. It is refused if the position has moved
since it was looked at. Where the handler has a dead-letter function, that is
the better place for a message that fails.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			if through < 0 {
				return usage("--through is %d; want an offset", through)
			}
			return a.perform(c, which, by, names, func(ctx context.Context, seen []operate.Partition) ([]deed, error) {
				if p := seen[0]; int64(p.Next) > through {
					return nil, fmt.Errorf("%s: offset %d was applied or skipped: the next one is %d", p.Fence.Partition, through, p.Next)
				}
				return a.planMoves(ctx, operate.ActSkip, goal{offset: epoch.Offset(through + 1)}, seen)
			})
		},
	}
	which.add(c.Flags())
	c.Flags().Int64Var(&through, "through", -1, "the last offset that is not applied")
	_ = c.MarkFlagRequired("through")
	by.add(c.Flags())
	return c
}
