package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// This file has the command doctor: the findings of check, and those about servers, versions and
// privileges. A server that cannot be reached is a finding.

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

func (a *app) versions(ctx context.Context, db database) (fs []finding) {
	ts, err := db.tables(ctx)
	if err != nil {
		return []finding{{"tables", warn, "", a.flags.secretive(err).Error(), ""}}
	}
	for _, t := range ts {
		f := finding{Check: "tables", Status: ok, Detail: fmt.Sprintf("the %s's tables in %s have version %d", t.of, t.where, t.have)}
		switch want := len(t.scripts); {
		case t.have == 0 && t.of == "outbox":
			f.Status, f.Detail = info, "there is no outbox in "+t.where
		case t.have < want:
			f.Status, f.Remedy = bad, "epochfence migrate up"
			f.Detail += fmt.Sprintf("; this program has %d", want)
			if t.of == "outbox" {
				f.Remedy += " --outbox"
			}
		case t.have > want:
			f.Status, f.Remedy = bad, "update this program"
			f.Detail += fmt.Sprintf("; this program has %d", want)
		}
		fs = append(fs, f)
	}
	return fs
}
