package sinktest

import (
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func lives(run, group, name string) operate.Process {
	return operate.Process{Run: run, Group: group, Name: name, Host: "pod-" + name, PID: 7, Version: "example.com/shop@v1.2.3", Every: time.Minute}
}

func (a *process) alive(p operate.Process) {
	a.w.Helper()
	if err := a.operable().Alive(a.w.ctx, p); err != nil {
		a.w.Fatalf("sign of life of %+v: %v", p, err)
	}
}

func (h *person) processes(group string, runs ...string) []operate.Process {
	h.w.Helper()
	ps, err := h.op.Processes(h.w.ctx, group)
	if err != nil {
		h.w.Fatalf("list processes: %v", err)
	}
	var got []string
	for _, p := range ps {
		got = append(got, p.Run)
	}
	if !slices.Equal(got, runs) {
		h.w.Errorf("the processes of group %q are %q, want %q", group, got, runs)
	}
	return ps
}

func signsOfLife(w *world) {
	h, a, b := w.person(), w.process("A"), w.process("B")
	h.processes("")
	one, two, other := lives("run-1", "billing", "host-1"), lives("run-2", "billing", "host-2"), lives("run-3", "other", "host-1")
	a.alive(one)
	b.alive(two)
	b.alive(other)
	h.processes("", "run-1", "run-2", "run-3")
	h.processes("other", "run-3")
	h.processes("nobody")
	first := h.processes("billing", "run-1", "run-2")[0]
	want := one
	want.Since, want.Seen, want.Now = first.Since, first.Seen, first.Now
	if first != want || first.Since.IsZero() || first.Seen.Before(first.Since) || first.Now.Before(first.Seen) || !first.Alive() {
		w.Errorf("the process is %+v, want %+v", first, want)
	}

	// Since is the time of its first sign and Seen of its last, by the database's clock.
	w.until("the next sign comes later", func() bool {
		one.Problems = "billing/orders/0: the handler hangs\nnot a member of the group"
		one.Every, one.Since, one.Seen = 2*time.Minute, time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		a.alive(one)
		now := h.processes("billing", "run-1", "run-2")[0]
		if !now.Since.Equal(first.Since) || now.Every != one.Every || now.Problems != one.Problems || now.Seen.Before(first.Seen) || now.Now.Before(now.Seen) {
			w.Errorf("the process is %+v, it was %+v", now, first)
		}
		return now.Seen.After(first.Seen)
	})

	for range 2 {
		if err := a.operable().Gone(w.ctx, one); err != nil {
			w.Errorf("gone: %v", err)
		}
	}
	h.processes("billing", "run-2")
}

func signsThatStop(w *world) {
	h, a := w.person(), w.process("A")
	living, dead := lives("run-1", "billing", "host-1"), lives("run-2", "billing", "host-1")
	dead.Every = 10 * time.Millisecond
	a.alive(living)
	a.alive(dead)
	w.until("a process that gives no sign is not alive", func() bool {
		ps := h.processes("", "run-1", "run-2")
		return len(ps) == 2 && ps[0].Alive() && !ps[1].Alive()
	})

	// It stays listed while other processes give signs, until one takes its place.
	a.alive(lives("run-3", "billing", "host-2"))
	a.alive(lives("run-4", "other", "host-1"))
	h.processes("", "run-1", "run-2", "run-3", "run-4")
	a.alive(living)
	ps := operate.Lives(h.processes("", "run-1", "run-3", "run-4"))
	fence := epoch.Fence{Origin: epoch.Origin{Partition: orders0}, Owner: "host-1/member"}
	if p, known := ps.Owner(fence); p.Run != "run-1" || !known || ps.Alive("billing") != 2 || ps.Alive("nobody") != 0 {
		w.Errorf("the owner of what %q has claimed is %+v of %+v", fence.Owner, p, ps)
	}
}

func (w *world) until(what string, so func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.Fatalf("did not happen: %s", what)
		}
	}
}

func signsOfOddProcesses(w *world) {
	h, a := w.person(), w.process("A")
	long := strings.Repeat("é", 5000)
	a.alive(operate.Process{Run: "run-1", Group: "billing", Name: "a\x00b\xff", Host: long, Version: long, Problems: long, Every: time.Second})
	ps := h.processes("", "run-1")
	if len(ps) == 1 && (!strings.HasPrefix(ps[0].Name, "a") || !strings.HasPrefix(long, ps[0].Host) || ps[0].Host == "") {
		w.Errorf("the process is %+v", ps[0])
	}
}
