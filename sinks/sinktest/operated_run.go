package sinktest

import (
	"errors"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func runsAreRequested(w *world) {
	nightly := epoch.Partition{Group: "billing", Topic: "nightly"}
	job, l := start(nightly, 5_000_000, 0), lease(nightly, 5, "A")
	job.Log, l.Log = operate.JobLog, operate.JobLog
	h, a := w.person(), w.process("A")
	a.seeds(job)
	ta := a.swaps(a.reads(nightly), l)
	ta.applies(2)
	ta.recordsHangs(operate.DecidedHang, 5_000_002, 5_000_003, 1)

	run := to(operate.ActRun, ta.Fence, 6_000_000)
	run.To.Mark = 1
	w.seed(orders0)
	a.claims(orders0, 5)
	for name, change := range map[string]func(*operate.Act){
		"of a partition that is no job": func(a *operate.Act) { a.Partition, a.Seen = orders0, h.sees(orders0); a.To.Offset = 0 },
		"without a mark":                func(a *operate.Act) { a.To.Mark = epoch.NoMark },
		"before the position":           func(a *operate.Act) { a.To.Offset = 5_000_001 },
		"a second after it":             func(a *operate.Act) { a.To.Offset = 6_000_002 },
		"at the beginning":              func(a *operate.Act) { a.Beginning = true },
		"nowhere":                       func(a *operate.Act) { a.To = nil },
	} {
		wrong := run
		at := *run.To
		wrong.To = &at
		change(&wrong)
		before := h.sees(wrong.Partition)
		if _, err := h.op.Act(w.ctx, wrong); !errors.Is(err, operate.ErrAct) || h.sees(wrong.Partition) != before {
			w.Errorf("a run %s: %v", name, err)
		}
	}
	a.wantHangs(nightly, "hang 5000002>5000003 A")

	before := a.acts(nightly)
	if f := h.does(run); f.Next != 6_000_000 || f.Mark != 1 || f.SetUnder != f.Epoch || !f.Applied {
		w.Errorf("after the request the fence is\n%+v", f)
	}
	ta.refused(epoch.ErrStale, 1)
	a.wantHangs(nightly)
	if a.acts(nightly) == before {
		w.Error("a requested run does not count as an act")
	}
	h.wantLog(nightly, "claim 5 -1>5000000", "hang 5 5000002>5000003: it waits", "run 6 5000002>6000000 anna: for the test")
}

// acts returns the number that changes with each act.
func (a *process) acts(p epoch.Partition) int64 {
	a.w.Helper()
	r, err := a.operable().Requests(a.w.ctx, []epoch.Partition{p})
	if err != nil {
		a.w.Fatalf("look for requests: %v", err)
	}
	return r.Acts
}
