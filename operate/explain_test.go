package operate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

// past is a partition with a history: claimed by a at 0, by b at 3, rewound to 1 by
// anna, claimed by b again, at 6 now. A minute passes between any two steps.
func past(t *testing.T) *memsink.Sink {
	s := memsink.New()
	o := epoch.Origin{Partition: orders, Log: "log", Source: "source"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	var f epoch.Fence
	step := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
	}
	claim := func(owner string) {
		seen, err := epoch.FenceOf(t.Context(), s, orders)
		if err == nil {
			f, err = s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: owner}))
		}
		step(err)
	}
	applies := func(to epoch.Offset) {
		a := epoch.Advance{Partition: orders, Claim: f.Claim, From: f.Next, To: to}
		step(s.Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(context.Context, *memsink.Tx) error { return nil }))
		f.Next = to
	}
	claim("a")
	applies(3)
	claim("b")
	applies(5)
	step(operate.RecordsIn[*memsink.Tx](s).Record(t.Context(), []operate.Decision{
		{Kind: operate.DecidedStale, Partition: orders, Epoch: 1, Reason: "late"},
		{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: orders.Group}, Owner: "b", From: -1, To: -1, Reason: "a is silent"},
		{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: "another"}, Owner: "d", From: -1, To: -1, Reason: "c is silent"},
	}))
	rewind := operate.NewAct(operate.ActRewind, s.Fences()[orders], "anna", "again")
	rewind.To = &epoch.Position{Offset: 1}
	_, err := s.Operator().Act(t.Context(), rewind)
	step(err)
	claim("b")
	applies(6)
	return s
}

func at(o epoch.Offset) operate.Question { return operate.Question{Offset: &o} }

func TestExplainTellsWhoHadAPartition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		s := past(t)
		op := s.Operator()
		ds, err := op.History(t.Context(), operate.HistoryQuery{})
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(ds)
		for name, c := range map[string]struct {
			q    operate.Question
			want string
			says int // decisions
		}{
			"now":                         {operate.Question{}, "claim 4 b 1-6 now", 1},
			"an offset of one claim":      {at(0), "claim 1 a 0-3 claim", 2},
			"an offset that was set back": {at(4), "claim 2 b 3-5 rewind; claim 4 b 1-6 now", 5},
			"one before and one after":    {at(1), "claim 1 a 0-3 claim; claim 4 b 1-6 now", 6},
			"an offset to come":           {at(6), "", 0},
			"a claim":                     {operate.Question{Claim: ds[1].Claim}, "claim 2 b 3-5 rewind", 4},
			"an operator's act":           {operate.Question{Claim: ds[5].Claim}, "rewind 3 operator anna 1-1 claim", 2},
			"a time":                      {operate.Question{At: began.Add(150 * time.Second)}, "claim 2 b 3-5 rewind", 4},
			"the time of a claim":         {operate.Question{At: began.Add(120 * time.Second)}, "claim 2 b 3-5 rewind", 4},
			"a time before the first":     {operate.Question{At: began.Add(-time.Second)}, "", 0},
			"a time after the last, now":  {operate.Question{At: began.Add(time.Hour)}, "claim 4 b 1-6 now", 1},
			"an unknown claim":            {operate.Question{Claim: epoch.NewClaimID()}, "", 0},
		} {
			story, err := operate.Explain(t.Context(), op, orders, c.q)
			var got []string
			for _, s := range story.Spans {
				end := "now"
				if s.End != nil {
					end = string(s.End.Kind)
				}
				got = append(got, fmt.Sprintf("%s %d %s %d-%d %s", s.Claim.Kind, s.Claim.Epoch, s.Claim.Owner, s.From, s.To, end))
			}
			if strings.Join(got, "; ") != c.want || err != nil || !story.Complete || len(story.Decisions) != c.says || story.Partition.Next != 6 {
				t.Errorf("%s: %q, %v; want %q; %d decisions, want %d; complete %v", name, got, err, c.want, len(story.Decisions), c.says, story.Complete)
			}
		}
		if _, err := operate.Explain(t.Context(), op, orders, operate.Question{At: began, Claim: ds[0].Claim}); err == nil {
			t.Error("two questions at a time were answered")
		}
	})
}
