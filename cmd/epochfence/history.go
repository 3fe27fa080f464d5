package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the command history: which entries of the audit log are read, and how they are
// printed.

type historyFlags struct {
	chosen
	claim, until string
	kinds        []string
	before       int64
	limit        int
}

func (a *app) history() *cobra.Command {
	var f historyFlags
	c := &cobra.Command{
		Use:   "history [PARTITION]",
		Short: "Read the audit log",
		Long: `Read the audit log, newest first: claims, refusals, halts, losses and operator
actions.

KIND is claim, stale (a commit was refused), halt, recovery, loss, in-doubt, hang,
on-failure-hang, tick (of a job); rewind, skip, pause, resume, evict, rebase, run; replay-request,
replay-withdraw, replay, replay-failure, discard. FROM and TO are the position before
and after, or the offset of the dead letter. For a job, FROM and TO are times. For a
hang, the message is one with an offset in [FROM, TO). WHO is the name that the process
or the operator gave; ROLE is the role of its connection to PostgreSQL.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error { return a.runHistory(c.Context(), f, names) },
	}
	f.chosen.add(c.Flags())
	c.Flags().StringVar(&f.claim, "claim", "", "of this claim only")
	c.Flags().StringSliceVar(&f.kinds, "kind", nil, "of these kinds only")
	c.Flags().StringVar(&f.until, "until", "", "not after this time")
	c.Flags().Int64Var(&f.before, "before", 0, "with a lower ID only")
	c.Flags().IntVar(&f.limit, "limit", 50, "how many")
	return c
}

type decisionView struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"at"`
	Kind      string    `json:"kind"`
	Partition string    `json:"partition"`
	Epoch     int64     `json:"epoch"`
	Claim     string    `json:"claim"`
	Owner     string    `json:"owner"`
	From      *int64    `json:"from_offset"` // null: unknown, or there was no earlier claim
	To        *int64    `json:"to_offset"`
	Reason    string    `json:"reason,omitempty"`
	By        string    `json:"by,omitempty"`
	Role      string    `json:"role,omitempty"`
	TraceID   string    `json:"trace_id,omitempty"`
}

func decided(d operate.Decision) decisionView {
	v := decisionView{
		ID: d.ID, At: d.At.UTC(), Kind: string(d.Kind), Partition: d.Partition.String(), Epoch: int64(d.Epoch), Claim: d.Claim.String(),
		Owner: d.Owner, Reason: d.Reason, By: d.By, Role: d.Role, TraceID: d.TraceID,
	}
	if d.From >= 0 {
		v.From = number(int64(d.From))
	}
	if d.To >= 0 {
		v.To = number(int64(d.To))
	}
	return v
}

func (a *app) runHistory(ctx context.Context, f historyFlags, names []string) error {
	q := operate.HistoryQuery{Before: f.before, Limit: f.limit}
	if f.limit <= 0 {
		return usage("--limit is %d; want 1 or more", f.limit)
	}
	for _, k := range f.kinds {
		q.Kinds = append(q.Kinds, operate.DecisionKind(k))
	}
	var err error
	if f.claim != "" {
		if q.Claim, err = epoch.ParseClaimID(f.claim); err != nil {
			return usageError{err}
		}
	}
	if f.until != "" {
		if q.Until, err = parseTime(f.until, time.Now()); err != nil {
			return err
		}
	}
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	var ps []operate.Partition
	if len(names) > 0 {
		p, err := a.partition(ctx, op, f.chosen, names[0])
		if err != nil {
			return err
		}
		ps, q.Partition = append(ps, p), &p.Fence.Partition
	} else if ps, err = a.partitions(ctx, op, f.chosen, nil); err != nil {
		return err
	}
	logs := map[epoch.Partition]string{}
	for _, p := range ps {
		logs[p.Fence.Partition] = p.Log
	}
	ds, err := decisions(ctx, op, q, f.chosen)
	if err != nil {
		return err
	}
	vs := []decisionView{}
	t := newTable(">ID", "AT", "KIND", "PARTITION", ">EPOCH", ">FROM", ">TO", "WHO", "ROLE", "WHY")
	for _, d := range ds {
		v, log := decided(d), logs[d.Partition]
		vs = append(vs, v)
		t.row(v.ID, stamp(v.At), v.Kind, v.Partition, v.Epoch, positionIn(log, d.From), positionIn(log, d.To), dash(cmp.Or(v.By, v.Owner)), dash(v.Role), v.Reason)
	}
	return a.show(map[string]any{"decisions": vs}, func() { t.print(a.out) })
}

// decisions reads pages until it has q.Limit decisions of the group or topic.
func decisions(ctx context.Context, op operate.Operator, q operate.HistoryQuery, of chosen) (found []operate.Decision, err error) {
	want := q.Limit
	if of != (chosen{}) {
		q.Limit = 1000
	}
	for {
		ds, err := op.History(ctx, q)
		if err != nil {
			return nil, err
		}
		found = append(found, slices.DeleteFunc(slices.Clone(ds), func(d operate.Decision) bool {
			return of.group != "" && of.group != d.Partition.Group || of.topic != "" && of.topic != d.Partition.Topic
		})...)
		if len(found) >= want {
			return found[:want], nil
		}
		if len(ds) < q.Limit {
			return found, nil
		}
		q.Before = ds[len(ds)-1].ID
	}
}
