package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/operate"
)

// This file has the commands check and doctor: which findings count, and the exit code. doctor also
// looks at servers, versions and privileges; a server that cannot be reached is a finding.
// findings.go has the findings of both.

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

func (a *app) doctor() *cobra.Command {
	var which chosen
	l := limits{lag: -1, age: 5 * time.Minute, outboxAge: 5 * time.Minute, claims: 20, outside: reportOutside}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems, and say what to do",
		Long: `Check connections, versions of tables, privileges of this role, settings of the
server, halted and paused partitions, fences with another log or lease issuer than
the broker, positions outside the log, partitions without a fence, claims that
change often, dead letters, the outbox, and writes to protected tables from outside
fenced transactions.

Clocks are compared for information only. The exit code is 3 if there is a problem.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runDoctor(c.Context(), which, l) },
	}
	which.add(c.Flags())
	return c
}

func (a *app) runDoctor(ctx context.Context, which chosen, l limits) error {
	fs, err := a.examine(ctx, which, l)
	if err != nil {
		return err
	}
	sick := troubles(fs)
	err = a.show(map[string]any{"healthy": !sick, "findings": fs}, func() {
		t := newTable("STATUS", "CHECK", "PARTITION", "WHAT")
		for _, f := range fs {
			t.row(f.Status, f.Check, dash(f.Partition), f.Detail)
		}
		t.print(a.out)
		if sick {
			a.say("")
			toDo(fs).print(a.out)
		}
	})
	if sick {
		err = errors.Join(errTrouble, err)
	}
	return err
}

func toDo(fs []finding) *table {
	t := newTable("ABOUT", "WHAT TO DO")
	for _, f := range fs {
		if f.Remedy != "" {
			t.row(f.Check+about(f.Partition), f.Remedy)
		}
	}
	return t
}

func about(partition string) string {
	if partition == "" {
		return ""
	}
	return " of " + partition
}

// examine runs all checks. An error of a server is a finding.
func (a *app) examine(ctx context.Context, which chosen, l limits) ([]finding, error) {
	db, err := a.open(ctx, false)
	switch {
	case errors.As(err, new(usageError)):
		return nil, err
	case err != nil:
		return failure("database", err), nil
	}
	fs := db.examine(ctx)
	if fs[0].Status == bad {
		return fs, nil
	}
	fs = append(fs, a.versions(ctx, db)...)
	s, err := a.survey(ctx, which)
	if err != nil {
		return append(fs, failure("fences", err)...), nil
	}
	fs = append(fs, finding{"fences", ok, "", count(int64(len(s.ps)), "partition"), ""})
	if !s.brokered {
		fs = append(fs, finding{"log", info, "", "neither --kafka nor --nats: logs and lag were not looked at", ""})
	}
	return append(fs, a.findings(ctx, s, l)...), nil
}

func failure(check string, err error) []finding {
	return []finding{{Check: check, Status: bad, Detail: err.Error()}}
}

func (a *app) versions(ctx context.Context, db database) []finding {
	t, err := db.tables(ctx)
	switch {
	case err != nil:
		return []finding{{"tables", warn, "", a.flags.secretive(err).Error(), ""}}
	case t == nil:
		return nil
	}
	f := finding{Check: "tables", Status: ok, Detail: fmt.Sprintf("the tables in %s have version %d", t.where, t.have)}
	switch want := len(t.scripts); {
	case t.have < want:
		f.Status, f.Remedy = bad, "epochfence migrate up"
		f.Detail += fmt.Sprintf("; this program has %d", want)
	case t.have > want:
		f.Detail += fmt.Sprintf("; this program has %d, and works on them if it has the same major number", want)
	}
	return []finding{f}
}
