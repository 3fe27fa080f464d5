package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

// This file has the command check: which findings count, and its exit code. findings.go has the
// findings.

func (a *app) check() *cobra.Command {
	var which chosen
	var l limits
	c := &cobra.Command{
		Use:   "check",
		Short: "Report by the exit code whether all partitions are well, for monitoring",
		Long: `Report whether partitions are well: exit code 0 if they are, 3 if not or if a
log cannot be read, 1 if the sink cannot be read. The first line is a summary.

A group is not well if none of its processes is alive, or if one of them reports a
call that hangs or that it is no member. A partition is not well if
  - its owner is not alive, or it was never claimed;
  - it has halted or is paused;
  - no owner has claimed it for a minute after an operator action;
  - its fence has another log or lease issuer than the broker (on NATS: than
    --nats-bucket and --nats-domain), its position is outside the log, or it has
    no fence;
  - its group has committed to Kafka under a claim that this sink does not have;
  - its log ends at a producer's transaction that is open for longer than
    --max-age, or than a minute;
  - it exceeds one of the limits below.
A protected table (epochfence protect) is not well if a transaction that was not
fenced has written to it within --outside-within, or if its trigger is disabled.
Checks of logs need --kafka or --nats.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runCheck(c.Context(), which, l) },
	}
	which.add(c.Flags())
	f := c.Flags()
	f.Int64Var(&l.lag, "max-lag", -1, "messages to apply, of a partition; negative: any number")
	f.DurationVar(&l.age, "max-age", 0, "for how long a partition that has messages may stand still; 0: for ever")
	f.Int64Var(&l.deadLetters, "max-dead-letters", 0, "dead letters of a partition; 0 allows none")
	f.DurationVar(&l.outboxAge, "max-outbox-age", 0, "for how long an entry of the outbox may wait; 0: for ever")
	f.IntVar(&l.claims, "max-claims", 0, "of a partition, in an hour; 0: any number")
	f.DurationVar(&l.outside, "outside-within", reportOutside, "report writes to protected tables from outside fenced transactions in this time; 0: protected tables are not checked")
	f.BoolVar(&l.paused, "allow-paused", false, "partitions that are paused are well")
	return c
}

func (a *app) runCheck(ctx context.Context, which chosen, l limits) error {
	s, err := a.survey(ctx, which)
	if err != nil {
		return err
	}
	if (l.lag >= 0 || l.age > 0) && !s.brokered {
		return usage("--max-lag and --max-age need --kafka or --nats")
	}
	found := []finding{}
	for _, f := range a.findings(ctx, s, l) {
		if f.Status == warn || f.Status == bad {
			found = append(found, f)
		}
	}
	if len(s.ps) == 0 {
		found = append(found, finding{Check: "fences", Status: bad, Detail: "there is no such partition in this sink"})
	}
	err = a.show(map[string]any{"healthy": len(found) == 0, "partitions": len(s.ps), "findings": found}, func() { a.printCheck(s.ps, found) })
	if len(found) > 0 {
		err = errors.Join(errTrouble, err)
	}
	return err
}

func (a *app) printCheck(ps []operate.Partition, found []finding) {
	if len(found) == 0 {
		a.say("OK: %s", count(int64(len(ps)), "partition"))
		return
	}
	a.say("TROUBLE: %s, %s", count(int64(len(found)), "finding"), count(int64(len(ps)), "partition"))
	for _, f := range found {
		a.say("%s%s: %s", f.Check, about(f.Partition), printable(f.Detail))
	}
}
