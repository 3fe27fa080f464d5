package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func (a *app) pause() *cobra.Command {
	return a.simpleAct(operate.ActPause, "Have partitions take no claim until they are resumed", `Have partitions take no claim until they are resumed. The owner's claim ends:
what it has begun is rolled back, and nothing of the partition is committed
any more. Its messages stay in the log.`,
		func(p operate.Partition) (effect, nothing string) {
			if p.Pause.Mode == epoch.Paused {
				return "", fmt.Sprintf("paused since %s, by %s: %s", p.Pause.Since.UTC().Format(time.RFC3339), p.Pause.By, p.Pause.Reason)
			}
			return "takes no claim until it is resumed", neverClaimed(p)
		})
}

func (a *app) resume() *cobra.Command {
	return a.simpleAct(operate.ActResume, "Let partitions that are paused take claims again",
		`Let partitions that are paused take claims again. Whoever has the lease claims
within seconds, and continues from the position.`,
		func(p operate.Partition) (effect, nothing string) {
			if p.Pause.Mode == epoch.Running {
				return "", "it is not paused"
			}
			return "takes claims again; it continues at " + placeIn(p.Log, p.Next), ""
		})
}

func (a *app) evict() *cobra.Command {
	return a.simpleAct(operate.ActEvict, "Take the claim of partitions away from their owner", `Take the claim of partitions away. The owner's open transaction is ended,
where this role may do that, and what the owner tries to commit is refused. The
owner claims again if its source still confirms the lease. If the owner hangs,
the next holder of the lease continues.`,
		func(p operate.Partition) (effect, nothing string) {
			return "the claim of " + p.Owner + " ends", neverClaimed(p)
		})
}

func neverClaimed(p operate.Partition) string {
	if p.Epoch == 0 {
		return "it was never claimed"
	}
	return ""
}

func (a *app) simpleAct(kind operate.ActKind, short, long string, effect func(operate.Partition) (effect, nothing string)) *cobra.Command {
	var which chosen
	var by doing
	c := &cobra.Command{
		Use: string(kind) + " [PARTITION...]", Short: short, Long: long,
		RunE: func(c *cobra.Command, names []string) error {
			return a.perform(c, which, by, names, func(_ context.Context, seen []operate.Partition) (ds []deed, _ error) {
				for _, p := range seen {
					what, nothing := effect(p)
					ds = append(ds, deed{kind: kind, seen: p, effect: what, nothing: nothing})
				}
				return ds, nil
			})
		},
	}
	which.add(c.Flags())
	by.add(c.Flags())
	return c
}
