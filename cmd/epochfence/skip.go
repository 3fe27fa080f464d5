package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

func (a *app) skip() *cobra.Command {
	var which chosen
	var by doing
	var through string
	c := &cobra.Command{
		Use:   "skip PARTITION --through OFFSET|@TIME",
		Short: "Move past messages that are not to be applied",
		Long: `Move the position past messages that are not to be applied: those from the
position up to and with --through, for a job its ticks up to and with that time
(@2006-01-02T15:04:05Z). It is refused if the position has moved
since it was looked at. Where the handler has a dead-letter function, that is
the better place for a message that fails.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			last, err := parseGoal(through, time.Now())
			if err != nil || last.relative || last.at.IsZero() && last.word != text(last.offset) {
				return usage("--through is %q; want an offset, or @TIME for a job", through)
			}
			return a.perform(c, which, by, names, func(ctx context.Context, seen []operate.Partition) ([]deed, error) {
				p, next := seen[0], last.offset+1
				if !last.at.IsZero() {
					if !isJob(p.Fence) {
						return nil, usage("--through is %q, and %s is no job; want an offset", through, p.Fence.Partition)
					}
					next = operate.JobOffset(last.at.Add(time.Second))
				}
				if p.Next >= next {
					return nil, fmt.Errorf("%s: what --through %s names was applied or skipped: the next one is %s", p.Fence.Partition, through, position(p.Fence))
				}
				return a.planMoves(ctx, operate.ActSkip, goal{offset: next}, seen)
			})
		},
	}
	which.add(c.Flags())
	c.Flags().StringVar(&through, "through", "", "the last offset that is not applied")
	_ = c.MarkFlagRequired("through")
	by.add(c.Flags())
	return c
}
