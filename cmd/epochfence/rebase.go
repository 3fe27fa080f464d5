package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

type rebaseFlags struct {
	chosen
	by              doing
	log, source, to string
}

func (a *app) rebase() *cobra.Command {
	var f rebaseFlags
	c := &cobra.Command{
		Use:   "rebase [PARTITION...] [--to start|end|N|@TIME]",
		Short: "Accept another log or lease issuer than the fence has",
		Long: `Accept another log, or another issuer of leases, than the fence has: a topic
that was deleted and created again, another cluster, another bucket. It is the
remedy for "log changed" and "foreign lease source".

The command asks Kafka or NATS for the present log, and Kafka for the issuer. On
NATS, --nats-bucket and --nats-domain say the issuer. If the command cannot ask, copy the log (--log) or the issuer (--source) from the error of the halt. The
offsets of another log mean other messages: --to says where to continue in it.`,
		RunE: func(c *cobra.Command, names []string) error {
			var g goal
			if f.to != "" {
				var err error
				if g, err = parseGoal(f.to, time.Now()); err != nil {
					return err
				}
				if g.relative {
					return usage("--to is %q, which counts from the position in the old log; the new log has other offsets: give start, end, an offset or @TIME", f.to)
				}
			}
			return a.perform(c, f.chosen, f.by, names, func(ctx context.Context, seen []operate.Partition) (ds []deed, err error) {
				for _, p := range seen {
					d, err := a.planRebase(ctx, f, g, p)
					if err != nil {
						return nil, err
					}
					ds = append(ds, d)
				}
				return ds, nil
			})
		},
	}
	f.chosen.add(c.Flags())
	c.Flags().StringVar(&f.to, "to", "", "where to continue in the log")
	c.Flags().StringVar(&f.log, "log", "", "the log to accept. If empty: the present log, or with --source the log that the fence has")
	c.Flags().StringVar(&f.source, "source", "", "the issuer of leases to accept. If empty: the present issuer, or with --log the issuer that the fence has")
	f.by.add(c.Flags())
	return c
}

func (a *app) planRebase(ctx context.Context, f rebaseFlags, g goal, p operate.Partition) (deed, error) {
	d := deed{kind: operate.ActRebase, seen: p, log: f.log, source: f.source}
	now := p.Fence
	if f.log == "" && f.source == "" {
		e, err := a.extentOf(ctx, p.Fence)
		if err != nil {
			return d, err
		}
		d.log, d.source = e.log, e.source
	}
	if d.log == p.Log {
		d.log = ""
	}
	if d.source == p.Source {
		d.source = ""
	}
	if d.log == "" && d.source == "" {
		d.nothing = "the log and the issuer of leases are those of the fence"
		if isNATSLog(p.Log) { // whose name has what only the processes know
			d.nothing += "; if processes read other filters or another number of partitions, copy --log from the error of the halt"
		}
		return d, nil
	}
	if d.log != "" {
		if g == (goal{}) {
			return d, usage("%s: log %s counts other offsets than %s: say where to continue in it with --to", p.Fence.Partition, d.log, p.Log)
		}
		now.Log = d.log
		d.effect = "log " + d.log + " is accepted"
	}
	if d.source != "" {
		d.effect = and(d.effect, "lease issuer "+d.source+" is accepted")
	}
	if g == (goal{}) {
		return d, nil
	}
	effect := d.effect
	if err := a.aim(ctx, &d, g, now); err != nil {
		return d, err
	}
	if d.log != "" { // positions in two logs cannot be compared
		d.effect = and(effect, "it continues at offset "+text(d.to.Offset))
	} else {
		d.effect = and(effect, d.effect)
	}
	return d, nil
}

func and(one, other string) string {
	if one == "" {
		return other
	}
	return one + "; " + other
}
