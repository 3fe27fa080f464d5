package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the commands that change partitions, and their flags. act.go shows and carries out
// what they plan.

// The commands that act on partitions. Each says what its flags request; package operate plans and
// carries out, and perform shows.

func (a *app) pause() *cobra.Command {
	return a.simpleAct(operate.ActPause, "pause [PARTITION...]", "Make partitions refuse claims until they are resumed", `Have partitions take no claim until they are resumed. The owner's claim ends:
what it has begun is rolled back, and nothing of the partition is committed
any more. Its messages stay in the log.`)
}

func (a *app) resume() *cobra.Command {
	return a.simpleAct(operate.ActResume, "resume [PARTITION...]", "Let partitions that are paused take claims again",
		`Let partitions that are paused take claims again. Whoever has the lease claims
within seconds, and continues from the position.`)
}

func (a *app) evict() *cobra.Command {
	return a.simpleAct(operate.ActEvict, "evict [PARTITION...]", "Take the claim of partitions away from their owner", `Take the claim of partitions away. The owner's open transaction is ended,
where this role may do that, and what the owner tries to commit is refused. The
owner claims again if its source still confirms the lease. If the owner hangs,
the next holder of the lease continues.`)
}

func (a *app) run() *cobra.Command {
	return a.simpleAct(operate.ActRun, "run JOB...", "Run jobs of package schedule now", `Run jobs of package schedule now, beside their ticks. The process that has the
lease of a job runs it, once. It is refused between two steps of a run. A tick
under way is rolled back and runs again: items of a store may be changed twice.`)
}

func (a *app) simpleAct(kind operate.ActKind, use, short, long string) *cobra.Command {
	return a.act(use, short, long, func() (requested, error) { return always(operate.Request{Kind: kind}), nil })
}

func always(r operate.Request) requested {
	return func(epoch.Fence) (operate.Request, error) { return r, nil }
}

// act returns a command, of which request reads the flags.
func (a *app) act(use, short, long string, request func() (requested, error)) *cobra.Command {
	var which chosen
	var by doing
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: func(c *cobra.Command, names []string) error {
			r, err := request()
			if err != nil {
				return err
			}
			return a.perform(c, which, by, names, r)
		},
	}
	which.add(c.Flags())
	by.add(c.Flags())
	return c
}

func parseTarget(flag, s string) (*operate.Target, error) {
	t, err := operate.ParseTarget(s, func(at string) (time.Time, error) { return parseTime(at, time.Now()) })
	if err != nil {
		return nil, usage("--%s: %w", flag, err)
	}
	return &t, nil
}

func (a *app) rewind() *cobra.Command {
	var to string
	c := a.act("rewind [PARTITION...] --to start|end|N|+N|-N|@TIME", "Set the position of partitions, back or forward", `Set the position of partitions. Back: messages are applied again, and a
handler that adds up adds twice. Forward: messages are never applied. A live
owner loses its claim, claims again, and continues from there: nobody has to
stop the group.

  --to start    where the log begins, also if retention moves that meanwhile
  --to end      what comes from now on
  --to 4711     the message at that offset is the next one
  --to -100     so many offsets back, --to +100 forward
  --to @12:03   the first message written then or later, in UTC; also
                @2006-01-02T15:04:05Z, and @-15m for a quarter of an hour ago.
                For a job: its ticks from then on

start, end and @TIME ask Kafka or NATS. For a job, nothing is asked: end is the
present time, and start is refused. A number is compared with where the log begins
and ends if --kafka or --nats is given.`,
		func() (requested, error) {
			target, err := parseTarget("to", to)
			return always(operate.Request{Kind: operate.ActRewind, To: target}), err
		})
	c.Flags().StringVar(&to, "to", "", "where to")
	_ = c.MarkFlagRequired("to")
	return c
}

func (a *app) skip() *cobra.Command {
	var through string
	c := a.act("skip PARTITION --through OFFSET|@TIME", "Move past messages that are not to be applied", `Move the position past messages that are not to be applied: those from the
position up to and with --through, for a job its ticks up to and with that time
(@2006-01-02T15:04:05Z). It is refused if the position has moved
since it was looked at. Where the handler has a dead-letter function, that is
the better place for a message that fails.`,
		func() (requested, error) {
			last, err := parseTarget("through", through)
			if err != nil || last.Relative || last.Word != "" {
				return nil, usage("--through is %q; want an offset, or @TIME for a job", through)
			}
			return func(f epoch.Fence) (operate.Request, error) {
				next := last.Offset + 1
				if !last.At.IsZero() {
					if !isJob(f) {
						return operate.Request{}, usage("--through is %q, and %s is no job; want an offset", through, f.Partition)
					}
					next = operate.JobOffset(last.At.Add(time.Second))
				}
				if f.Next >= next {
					return operate.Request{}, fmt.Errorf("%s: what --through %s names was applied or skipped: the next one is %s", f.Partition, through, position(f))
				}
				return operate.Request{Kind: operate.ActSkip, To: &operate.Target{Offset: next}}, nil
			}, nil
		})
	c.Args = cobra.ExactArgs(1)
	c.Flags().StringVar(&through, "through", "", "the last offset that is not applied")
	_ = c.MarkFlagRequired("through")
	return c
}

func (a *app) rebase() *cobra.Command {
	var log, source, to string
	c := a.act("rebase [PARTITION...] [--to start|end|N|@TIME]", "Accept another log or lease issuer than the fence has", `Accept another log, or another issuer of leases, than the fence has: a topic
that was deleted and created again, another cluster, another bucket. It is the
remedy for "log changed" and "foreign lease source".

The command asks Kafka or NATS for the present log, and Kafka for the issuer. On
NATS, --nats-bucket and --nats-domain say the issuer. If the command cannot ask, copy the log (--log) or the issuer (--source) from the error of the halt. The
offsets of another log mean other messages: --to says where to continue in it.`,
		func() (_ requested, err error) {
			r := operate.Request{Kind: operate.ActRebase, Log: log, Source: source}
			if to != "" {
				r.To, err = parseTarget("to", to)
			}
			return always(r), err
		})
	c.Flags().StringVar(&to, "to", "", "where to continue in the log")
	c.Flags().StringVar(&log, "log", "", "the log to accept. If empty: the present log, or with --source the log that the fence has")
	c.Flags().StringVar(&source, "source", "", "the issuer of leases to accept. If empty: the present issuer, or with --log the issuer that the fence has")
	return c
}
