package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

func (a *app) run() *cobra.Command {
	var which chosen
	var by doing
	c := &cobra.Command{
		Use:   "run JOB...",
		Short: "Run jobs of package schedule now",
		Long: `Run jobs of package schedule now, beside their ticks. The process that has the
lease of a job runs it, once. It is refused while a run of the job is between
two steps.`,
		RunE: func(c *cobra.Command, names []string) error {
			return a.perform(c, which, by, names, func(_ context.Context, seen []operate.Partition) (ds []deed, err error) {
				for _, p := range seen {
					d := deed{kind: operate.ActRun, seen: p, goal: "now", effect: "runs now, beside its ticks"}
					switch r, err := operate.NewRun(p.Fence, by.by, by.reason); {
					case errors.Is(err, operate.ErrNothingToDo):
						d.nothing = "a run was requested and has not begun"
					case err != nil:
						return nil, err
					default:
						d.to = r.To
					}
					ds = append(ds, d)
				}
				return ds, nil
			})
		},
	}
	which.add(c.Flags())
	by.add(c.Flags())
	return c
}
