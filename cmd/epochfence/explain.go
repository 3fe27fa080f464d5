package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the command explain. Package operate decides which claims answer the question; this
// file words the story.

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
