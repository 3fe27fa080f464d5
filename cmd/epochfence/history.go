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

// This file has the commands history and explain: which entries of the audit log are read, and how each is
// worded. Package operate decides which claims answer a question.

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

KIND is claim, stale (a commit was refused), halt, recovery, loss, suspected (of a
group: a process seemed to have died and was removed), in-doubt, hang,
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
		ID: d.ID, At: d.At.UTC(), Kind: string(d.Kind), Partition: d.About(), Epoch: int64(d.Epoch), Claim: d.Claim.String(),
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
	case operate.DecidedSuspected:
		return fmt.Sprintf("%s suspected that a process had died, and had it removed: %s", dash(owner), why)
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

type explainFlags struct {
	chosen
	at, claim string
	offset    int64
}

func (a *app) explain() *cobra.Command {
	f := explainFlags{offset: -1}
	c := &cobra.Command{
		Use:   "explain PARTITION [--at TIME | --offset N | --claim ID]",
		Short: "Show what happened to a partition, and who owned it when",
		Long: `Show from the audit log what happened to a partition: its owners, what was applied
under which claim, what was refused, and why the owner changed. Without a flag it is
about the current claim.

  epochfence explain orders/3 --at 12:03       who owned it then
  epochfence explain orders/3 --offset 4711    under which claims it was applied
  epochfence explain orders/3 --claim ID       what happened under that claim`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, names []string) error { return a.runExplain(c.Context(), f, names[0]) },
	}
	f.chosen.add(c.Flags())
	c.Flags().StringVar(&f.at, "at", "", "about that time: 12:03, 2006-01-02T15:04:05Z, -15m")
	c.Flags().Int64Var(&f.offset, "offset", -1, "about the message at that offset")
	c.Flags().StringVar(&f.claim, "claim", "", "about that claim")
	c.MarkFlagsMutuallyExclusive("at", "offset", "claim")
	return c
}

func (f explainFlags) question() (q operate.Question, err error) {
	if f.at != "" {
		if q.At, err = parseTime(f.at, time.Now()); err != nil {
			return q, err
		}
	}
	if f.offset >= 0 {
		o := epoch.Offset(f.offset)
		q.Offset = &o
	}
	if f.claim != "" {
		if q.Claim, err = epoch.ParseClaimID(f.claim); err != nil {
			return q, usageError{err}
		}
	}
	return q, nil
}

type spanView struct {
	Claim decisionView  `json:"claim"`
	From  int64         `json:"from_offset"`
	To    int64         `json:"to_offset"` // the claim applied the offsets in [From, To)
	End   *decisionView `json:"end"`       // null: the claim in the fence

	// Afterwards are the later decisions about the claim after it was replaced.
	Afterwards []decisionView `json:"afterwards"`
}

func (a *app) runExplain(ctx context.Context, f explainFlags, called string) error {
	q, err := f.question()
	if err != nil {
		return err
	}
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	p, err := a.partition(ctx, op, f.chosen, called)
	if err != nil {
		return err
	}
	s, err := operate.Explain(ctx, op, p.Fence.Partition, q)
	if err != nil {
		return err
	}
	vs, err := viewsOf(ctx, op, []operate.Partition{s.Partition})
	if err != nil {
		return err
	}
	now := vs[0]
	spans, ds := []spanView{}, []decisionView{}
	later := map[epoch.ClaimID][]operate.Decision{}
	for _, span := range s.Spans {
		v := spanView{Claim: decided(span.Claim), From: int64(span.From), To: int64(span.To), Afterwards: []decisionView{}}
		if span.End != nil {
			end := decided(*span.End)
			v.End = &end
			after, err := afterwards(ctx, op, span)
			if err != nil {
				return err
			}
			for _, d := range after {
				v.Afterwards = append(v.Afterwards, decided(d))
			}
			later[span.Claim.Claim] = after
		}
		spans = append(spans, v)
	}
	for _, d := range s.Decisions {
		ds = append(ds, decided(d))
	}
	return a.show(map[string]any{"partition": now, "spans": spans, "decisions": ds, "complete": s.Complete}, func() { a.tell(s, now, q, later) })
}

// afterwards returns the audit log's decisions about a claim after it was replaced, oldest first.
func afterwards(ctx context.Context, op operate.Operator, span operate.Span) ([]operate.Decision, error) {
	ds, err := op.History(ctx, operate.HistoryQuery{Partition: &span.Claim.Partition, Claim: span.Claim.Claim, Limit: 1000})
	ds = slices.DeleteFunc(ds, func(d operate.Decision) bool { return d.ID <= span.End.ID })
	slices.Reverse(ds)
	return ds, err
}

func (a *app) tell(s operate.Story, now partitionView, q operate.Question, later map[epoch.ClaimID][]operate.Decision) {
	a.say("%s", now.Name)
	a.say("  now    %s, epoch %d, next %s, owner %s", now.State, now.Epoch, placeIn(s.Partition.Log, s.Partition.Next), printable(dash(now.Owner)))
	switch now.State {
	case paused:
		a.say("         paused at %s by %s: %s", stamp(*now.Since), printable(now.By), printable(now.Reason))
	case halted:
		a.say("         halted at %s: %s", stamp(*now.Since), printable(now.Reason))
		a.remedy(s.Partition, now.Reason, map[string]bool{})
	default:
	}
	a.say("         claimed %s, advanced %s", stamp(s.Partition.ClaimedAt), stamp(s.Partition.AdvancedAt))
	if len(s.Spans) == 0 {
		a.say("\n%s", unanswered(s, q))
		return
	}
	for _, span := range s.Spans {
		a.tellSpan(s, span)
		if after := later[span.Claim.Claim]; len(after) > 0 {
			a.say("  Afterwards:")
			for _, d := range after {
				a.entry(s.Partition.Log, d)
			}
		}
	}
	if !s.Complete {
		a.say("\nThe audit log does not reach back to the first claim of the partition.")
	}
}

func unanswered(s operate.Story, q operate.Question) string {
	switch {
	case q.Offset != nil && *q.Offset >= s.Partition.Next && isJob(s.Partition.Fence):
		return fmt.Sprintf("The tick of %s was neither run nor left out: the job is at %s.", positionIn(s.Partition.Log, *q.Offset), position(s.Partition.Fence))
	case q.Offset != nil && *q.Offset >= s.Partition.Next:
		return fmt.Sprintf("Offset %d was not applied: the next one to apply is %d.", *q.Offset, s.Partition.Next)
	case s.Complete:
		return "No claim matches: nobody owned the partition then, or nobody applied that offset. The audit log is complete."
	default:
		return "The audit log does not reach back so far."
	}
}

func (a *app) tellSpan(s operate.Story, span operate.Span) {
	c := span.Claim
	who := "claimed by " + printable(c.Owner)
	if c.Kind != operate.DecidedClaim {
		who = string(c.Kind) + " by " + printable(c.By)
	}
	a.say("\nEpoch %d, %s, claim %s", c.Epoch, who, c.Claim)
	switch applied := int64(span.To - span.From); {
	case c.Kind != operate.DecidedClaim:
	case applied <= 0:
		a.say("  nothing was applied under it")
	case isJob(s.Partition.Fence):
		a.say("  ran or left out the ticks in [%s, %s)", positionIn(s.Partition.Log, span.From), positionIn(s.Partition.Log, span.To))
	default:
		a.say("  applied the offsets in [%d, %d)", span.From, span.To)
	}
	for _, d := range s.Decisions {
		if d.ID < c.ID || span.End != nil && d.ID > span.End.ID {
			continue
		}
		a.entry(s.Partition.Log, d)
	}
	if span.End == nil {
		a.say("  This claim is in the fence.")
	}
}

func (a *app) entry(log string, d operate.Decision) {
	a.say("  %s  %s", d.At.UTC().Format("2006-01-02T15:04:05.000Z"), sentence(log, d))
}
