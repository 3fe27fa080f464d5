package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file finds in the audit log which partitions are halted now, divides the log of a partition into the
// spans of its claims, and decides which spans answer a question. It leaves the wording to the command
// line.

// Question selects a part of a partition's history for [Explain]. Set at most one field. The zero
// Question asks about the present.
type Question struct {
	At     time.Time     // selects the claim that had the partition then
	Offset *epoch.Offset // selects the claims under which this offset was applied
	Claim  epoch.ClaimID // selects this claim
}

// Span is the time of one claim, from the decision that made it to the decision that replaced it.
type Span struct {
	Claim Decision // may be an operator's act; then no messages are applied in the span

	// From and To are the range [From, To) of offsets that were applied under the claim.
	From, To epoch.Offset

	// End is the decision that replaced the claim, or nil for the current claim.
	End *Decision
}

// Story is a partition's history in the audit log.
type Story struct {
	Partition Partition

	// Spans are the spans that the question is about, oldest first. An offset can have several, if
	// an operator has set the position back. There are none if the log does not reach back so far.
	Spans []Span

	// Decisions are all decisions from the beginning of the first span to the end of the last,
	// oldest first.
	Decisions []Decision

	// Complete says that the log reaches back to the first claim of the partition.
	Complete bool
}

// Explain reads at most maxPages pages of the audit log.
const (
	page     = 1000 // decisions
	maxPages = 50
)

// Explain returns what happened to p, from the newest 50,000 decisions of the partition in the
// audit log.
func Explain(ctx context.Context, op Operator, p epoch.Partition, q Question) (Story, error) {
	asked := 0
	for _, set := range []bool{!q.At.IsZero(), q.Offset != nil, q.Claim != (epoch.ClaimID{})} {
		if set {
			asked++
		}
	}
	if asked > 1 {
		return Story{}, fmt.Errorf("operate: explain %s: ask about one of a time, an offset and a claim", p)
	}
	// Read the fence after the log. Then the log is not newer than the fence.
	all, whole, err := read(ctx, op, p)
	if err != nil {
		return Story{}, err
	}
	// Suspicions say why owners have changed.
	ofGroup, err := op.History(ctx, HistoryQuery{Partition: &epoch.Partition{Group: p.Group}, Limit: page})
	if err != nil {
		return Story{}, err
	}
	all = slices.SortedFunc(slices.Values(append(all, ofGroup...)), func(a, b Decision) int { return cmp.Compare(a.ID, b.ID) })
	now, err := op.Partition(ctx, p)
	if err != nil {
		return Story{}, err
	}
	return storyOf(now, all, whole, q), nil
}

// read returns the decisions of p, oldest first. whole reports whether these are all.
func read(ctx context.Context, op Operator, p epoch.Partition) (all []Decision, whole bool, err error) {
	before := int64(0)
	for range maxPages {
		ds, err := op.History(ctx, HistoryQuery{Partition: &p, Before: before, Limit: page})
		if err != nil {
			return nil, false, err
		}
		all = append(all, ds...)
		if len(ds) < page {
			slices.Reverse(all)
			return all, true, nil
		}
		before = ds[len(ds)-1].ID
	}
	slices.Reverse(all)
	return all, false, nil
}

func storyOf(now Partition, all []Decision, whole bool, q Question) Story {
	s := Story{Partition: now, Complete: whole && begins(all)}
	spans := spansOf(now, all)
	for _, span := range spans {
		if asksAbout(q, span) {
			s.Spans = append(s.Spans, span)
		}
	}
	if q == (Question{}) && len(spans) > 0 {
		s.Spans = spans[len(spans)-1:]
	}
	if len(s.Spans) == 0 {
		return s
	}
	first, last := s.Spans[0].Claim.ID, s.Spans[len(s.Spans)-1].End
	for _, d := range all {
		if d.ID >= first && (last == nil || d.ID <= last.ID) && d.Kind != DecidedTick {
			s.Decisions = append(s.Decisions, d)
		}
	}
	return s
}

// begins reports whether the first claim of the partition is among its decisions.
func begins(all []Decision) bool {
	i := slices.IndexFunc(all, func(d Decision) bool { return d.Kind.ReplacesClaim() })
	return i >= 0 && all[i].From < 0
}

func spansOf(now Partition, all []Decision) (spans []Span) {
	for _, d := range all {
		if !d.Kind.ReplacesClaim() {
			continue
		}
		if n := len(spans); n > 0 {
			spans[n-1].End, spans[n-1].To = &d, d.From
		}
		spans = append(spans, Span{Claim: d, From: d.To, To: d.To})
	}
	if n := len(spans); n > 0 && spans[n-1].Claim.Claim == now.Claim {
		spans[n-1].To = now.Next
	}
	return spans
}

func asksAbout(q Question, s Span) bool {
	switch {
	case !q.At.IsZero():
		return !s.Claim.At.After(q.At) && (s.End == nil || s.End.At.After(q.At))
	case q.Offset != nil:
		return s.From <= *q.Offset && *q.Offset < s.To
	case q.Claim != (epoch.ClaimID{}):
		return s.Claim.Claim == q.Claim
	default:
		return false
	}
}

// Halts reads at most haltPages pages of the audit log.
const (
	haltsAtOnce = 200 // entries of a page
	haltPages   = 50
)

// Halts returns the partitions of ps that have halted, each with its halt in the audit log. Since then, such
// a partition has not been claimed, has not moved and has not recovered. Halts may miss a partition
// if more than 10,000 halts and recoveries were recorded after its own.
func Halts(ctx context.Context, op Operator, ps []Partition) (map[epoch.Partition]*Decision, error) {
	found := map[epoch.Partition]*Decision{}
	open := map[epoch.Partition]Partition{} // partitions without an entry so far
	for _, p := range ps {
		open[p.Fence.Partition] = p
	}
	q := HistoryQuery{Kinds: []DecisionKind{DecidedHalt, DecidedRecovery}, Limit: haltsAtOnce}
	if len(ps) == 1 {
		q.Partition, q.Limit = &ps[0].Fence.Partition, 1
	}
	for range haltPages {
		ds, err := op.History(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, d := range ds {
			p, first := open[d.Partition]
			if !first {
				continue
			}
			delete(open, d.Partition)
			if d.Kind == DecidedHalt && !d.At.Before(p.ClaimedAt) && d.At.After(p.AdvancedAt) {
				found[d.Partition] = &d
			}
		}
		if len(ds) < q.Limit {
			break
		}
		last := ds[len(ds)-1]
		maps.DeleteFunc(open, func(_ epoch.Partition, p Partition) bool { // older entries do not count
			return p.ClaimedAt.After(last.At) || p.AdvancedAt.After(last.At)
		})
		if len(open) == 0 {
			break
		}
		q.Before = last.ID
	}
	return found, nil
}

// Fences returns the fences of ps.
func Fences(ps []Partition) []epoch.Fence {
	fs := make([]epoch.Fence, len(ps))
	for i, p := range ps {
		fs[i] = p.Fence
	}
	return fs
}
