package statusz

import (
	"context"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file serves the page of a partition, and decides which actions its form offers and how positions
// are shown: as offsets, or as times for jobs. act.go carries the actions out.

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
