package statusz

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/remedies"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file serves the page of a partition, and decides which actions its form offers and how positions
// are shown: as offsets, or as times for jobs. act.go carries the actions out. It also makes the boxes of this
// process's halts and hanging calls. Package remedies has their texts.

type detail struct {
	Title, At, Name string
	Done            operate.ActKind
	Group, Topic    string
	Number          int32
	Fence           []figure
	Job             bool
	MayAct          bool
	KnowsLogs       bool
	Acts            []kind
	Decisions       []moment
}

type kind struct {
	Kind operate.ActKind
	Text string
}

var kinds = []kind{
	{operate.ActRun, "runs the job now, beside its ticks"},
	{operate.ActPause, "no claim is taken until it is resumed; nothing is committed meanwhile"},
	{operate.ActResume, "ends a pause"},
	{operate.ActEvict, "takes the claim away; the owner claims again if its source still confirms the lease"},
	{operate.ActRewind, "sets the position: back, so that messages are applied again, or forward"},
	{operate.ActSkip, "moves the position forward, past messages that are not to be applied"},
	{operate.ActRebase, "accepts another log, or another lease issuer, than the fence has"},
}

func (h *Handler) partition(w http.ResponseWriter, r *http.Request) {
	form := r.URL.Query()
	p, err := partitionOf(form)
	if err != nil {
		h.fail(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	now, err := h.Operator.Partition(ctx, p)
	if err != nil {
		h.fail(w, err)
		return
	}
	ds, err := h.Operator.History(ctx, operate.HistoryQuery{Partition: &p, Limit: listed})
	if err != nil {
		h.fail(w, err)
		return
	}
	d := &detail{
		Title: h.Title, At: time.Now().UTC().Format(time.DateTime) + " UTC", Name: visible(p.String()),
		Done: doneOf(form.Get("done")), Group: p.Group, Topic: p.Topic, Number: p.Number,
		Fence: fields(now), MayAct: h.mayAct(r) != "", KnowsLogs: h.Logs != nil, Job: isJob(now.Fence), Acts: kindsOf(now.Fence), Decisions: h.decisions(ds, jobsOf(now), now.Now),
	}
	h.write(w, http.StatusOK, "partition.html", d)
}

// kindsOf returns the actions on a partition. A job has no other log, and only a job is run.
func kindsOf(f epoch.Fence) []kind {
	if isJob(f) {
		return kinds[:len(kinds)-1]
	}
	return kinds[1:]
}

// doneOf returns the kind of action after which a POST has redirected the browser here. It returns
// no more than the kind, because anybody can make such a link.
func doneOf(s string) operate.ActKind {
	for _, k := range kinds {
		if s == string(k.Kind) {
			return k.Kind
		}
	}
	return ""
}

func fields(p operate.Partition) []figure {
	fs := []figure{
		{"Owner", orNone(p.Owner), ""},
		{"Epoch", thousands(int64(p.Epoch)), ""},
		{"Claim", p.Claim.String(), ""},
		{"Claimed", clock(p.ClaimedAt, p.Now), ""},
		{"Next offset", position(p.Fence, p.Next), ""},
		{"Advanced", clock(p.AdvancedAt, p.Now), ""},
		{"Log", orNone(p.Log), ""},
		{"Lease issuer", orNone(p.Source), ""},
		{"Dead letters", thousands(p.DeadLetters), ""},
	}
	if p.Pause.Mode != epoch.Running {
		fs = append(fs, figure{"Mode", visible(string(p.Pause.Mode)), "since " + clock(p.Pause.Since, p.Now) + ", by " + show(p.Pause.By) + ": " + show(p.Pause.Reason)})
	}
	return fs
}

func orNone(s string) string {
	if s == "" {
		return "–"
	}
	return visible(s)
}

// jobs are the partitions that are jobs of package schedule. Their positions are times.
type jobs map[epoch.Partition]bool

func jobsOf(ps ...operate.Partition) jobs {
	js := jobs{}
	for _, p := range ps {
		if isJob(p.Fence) {
			js[p.Fence.Partition] = true
		}
	}
	return js
}

func isJob(f epoch.Fence) bool { return f.Log == operate.JobLog }

// position returns an offset of a partition, as the page shows it.
func (js jobs) position(p epoch.Partition, o epoch.Offset) string {
	switch {
	case o < 0:
		return "–"
	case js[p]:
		return operate.FormatOffset(operate.JobLog, o)
	default:
		return thousands(int64(o))
	}
}

// message names a message by its offset, or a tick by its time.
func (js jobs) message(m epoch.Message) string {
	if js[m.Partition] {
		return "tick " + js.position(m.Partition, m.Offset)
	}
	return "offset " + js.position(m.Partition, m.Offset)
}

func position(f epoch.Fence, o epoch.Offset) string {
	return jobs{f.Partition: isJob(f)}.position(f.Partition, o)
}

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
