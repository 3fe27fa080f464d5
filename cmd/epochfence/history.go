package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the command history: which entries of the audit log are read, and how each is worded
// as one line.

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
on-failure-hang, tick (of a job); rewind, skip, pause, resume, evict, rebase, run;
replay-request, replay-withdraw, replay, replay-failure, discard; outbox-retry,
outbox-discard. FROM and TO are the position before and after, or the offset of the
dead letter. For a job, FROM and TO are times. For a hang, the message is one with
an offset in [FROM, TO). WHO is the name that the process or the operator gave;
ROLE is the role of its connection to PostgreSQL.`,
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
	Entry     int64     `json:"entry,omitempty"` // of the outbox
	Key       string    `json:"idempotency_key,omitempty"`
}

func decided(d operate.Decision) decisionView {
	v := decisionView{
		ID: d.ID, At: d.At.UTC(), Kind: string(d.Kind), Partition: d.Partition.String(), Epoch: int64(d.Epoch), Claim: d.Claim.String(),
		Owner: d.Owner, Reason: d.Reason, By: d.By, Role: d.Role, TraceID: d.TraceID, Entry: d.Entry, Key: d.IdempotencyKey,
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

// sentence tells a decision about a partition of a log.
func sentence(log string, d operate.Decision) string {
	owner, by, why := printable(d.Owner), printable(d.By), printable(d.Reason)
	from, to := placeIn(log, d.From), placeIn(log, d.To)
	switch d.Kind {
	case operate.DecidedClaim:
		return fmt.Sprintf("%s claimed it under epoch %d, at %s", owner, d.Epoch, to)
	case operate.DecidedStale:
		return fmt.Sprintf("REFUSED: %s tried to continue under epoch %d at %s: %s", owner, d.Epoch, from, why)
	case operate.DecidedHalt:
		return fmt.Sprintf("HALTED by %s at %s: %s", dash(owner), from, why)
	case operate.DecidedRecovery:
		return fmt.Sprintf("%s found it well again at %s: %s", dash(owner), from, why)
	case operate.DecidedLoss:
		return fmt.Sprintf("%s lost it at %s: %s", dash(owner), from, why)
	case operate.DecidedTick:
		return fmt.Sprintf("%s ran the tick of %s: %s", dash(owner), positionIn(log, d.From), why)
	case operate.DecidedHang, operate.DecidedOnFailureHang:
		return fmt.Sprintf("GIVEN UP by %s, %s: %s", dash(owner), hung(log, d), why)
	case operate.DecidedInDoubt:
		return fmt.Sprintf("%s was in doubt about a commit at %s; the next claim found %s: %s", owner, from, to, why)
	case operate.DecidedRewind, operate.DecidedSkip, operate.DecidedRebase:
		return fmt.Sprintf("%s: %s, from %s to %s: %s", by, d.Kind, from, positionIn(log, d.To), why)
	case operate.DecidedRun:
		return fmt.Sprintf("%s requested a run: %s", by, why)
	case operate.DecidedPause, operate.DecidedResume, operate.DecidedEvict:
		return fmt.Sprintf("%s: %s: %s", by, d.Kind, why)
	case operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard:
		return fmt.Sprintf("%s: %s of entry %d: %s", by, d.Kind, d.Entry, why)
	default:
		who := by
		if who == "" {
			who = owner
		}
		return strings.TrimSpace(fmt.Sprintf("%s: %s of the message at %s: %s", who, d.Kind, from, why))
	}
}

// hung names the hanging call by the offsets of its decision.
func hung(log string, d operate.Decision) string {
	switch {
	case d.From < 0:
		return "as a call hangs"
	case d.To == d.From+1:
		return fmt.Sprintf("as the message at %s hangs", placeIn(log, d.From))
	default:
		return fmt.Sprintf("as a message in [%s, %s) hangs", positionIn(log, d.From), positionIn(log, d.To))
	}
}
