package statusz

import (
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate/remedies"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file makes the boxes of halts and hanging calls of this process. Package remedies has their
// texts.

type halt struct {
	Word       string
	Operator   bool
	Means      string
	Do, Check  string
	Commands   []command
	Partitions []halted
	More       int
}

type command struct{ Line, For string }

type halted struct{ Partition, Next, Since, Retry, Error, Stack string }

// halts groups halted partitions by reason. Reasons that need an operator come first.
func (js jobs) halts(held []stats.Partition, now time.Time) []halt {
	var hs []halt
	at := map[consumer.Reason]int{}
	for _, p := range held {
		if p.State != consumer.StateHalted || p.Reason == consumer.ReasonPaused {
			continue
		}
		i, known := at[p.Reason]
		if !known {
			i, at[p.Reason] = len(hs), len(hs)
			hs = append(hs, remedy(p.Reason, p.Partition))
		}
		if len(hs[i].Partitions) == listed {
			hs[i].More++
			continue
		}
		one := halted{Partition: show(p.Partition.String()), Next: js.position(p.Partition, p.Next), Since: age(now.Sub(p.Since)), Retry: "not by this process"}
		if !p.RetryAt.IsZero() {
			one.Retry = "in " + age(p.RetryAt.Sub(now))
			if !p.RetryAt.After(now) {
				one.Retry = "now"
			}
		}
		if p.Err != nil {
			one.Error = show(p.Err.Error())
		}
		hs[i].Partitions = append(hs[i].Partitions, one)
	}
	slices.SortStableFunc(hs, func(a, b halt) int {
		switch {
		case a.Operator == b.Operator:
			return 0
		case a.Operator:
			return -1
		default:
			return 1
		}
	})
	return hs
}

func remedy(r consumer.Reason, p epoch.Partition) halt {
	h := halt{Word: r.String(), Operator: r.NeedsOperator()}
	if found, ok := remedies.Of(r); ok {
		h.Means, h.Do, h.Check = found.Means, found.Do, found.Check
		for _, c := range found.Commands {
			h.Commands = append(h.Commands, command{c.On(p), c.For})
		}
	}
	return h
}

func (js jobs) hung(calls []consumer.Overdue, now time.Time) []halt {
	if len(calls) == 0 {
		return nil
	}
	h := remedy(consumer.ReasonHung, calls[0].Partition)
	h.Operator = true
	for _, o := range calls[:min(len(calls), listed)] {
		retry := "once it has returned"
		if o.Function == consumer.FunctionSink {
			retry = "under the next claim"
		}
		h.Partitions = append(h.Partitions, halted{
			Partition: show(o.Partition.String()), Next: js.position(o.Partition, o.Offset), Since: age(now.Sub(o.Since)),
			Retry: retry, Error: visible(o.String()), Stack: lines(o.Stack),
		})
	}
	h.More = len(calls) - len(h.Partitions)
	return []halt{h}
}
