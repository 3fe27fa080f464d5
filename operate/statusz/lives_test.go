package statusz_test

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// dies has a process that was seen a moment ago give no sign of life any more.
func (r *rig) dies(name string) {
	r.Helper()
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Alive(r.Context(), operate.Process{Run: name, Group: "billing", Name: name, Host: "pod-" + name, Every: time.Second}); err != nil {
		r.Fatal(err)
	}
}

func TestADeadGroupDoesNotLookWell(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.claims(orders(0), "one")
		r.claims(orders(1), "two")
		lone := func(o *statusz.Options) { o.Stats = nil }
		h := r.page(lone)
		_, page := get(h, "")
		wants(t, page, "Well. Nothing has halted.", "Processes alive 2")

		r.dies("one")
		pass(time.Minute)
		_, page = get(h, "")
		wants(t, page, "Waiting. 1 partition is not claimed, or not moving.",
			"owner is not alive not seen for 60 s, and no process has claimed the partition since", "Processes alive 1 1 gives no signs of life any more")

		r.dies("two")
		pass(5 * time.Minute)
		_, page = get(h, "")
		wants(t, page, "No live process. No process of group billing is alive; two on pod-two was seen last, 5", "Processes alive 0 2 give no signs of life any more")

		// In good order, so that nothing is left of them.
		for _, name := range []string{"one", "two"} {
			if err := operate.RecordsIn[*memsink.Tx](r.sink).Gone(t.Context(), operate.Process{Run: name}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		_, page = get(h, "")
		wants(t, page, "No live process. No process of group billing is alive. Start one.", "it gives no sign of life, and no process has claimed the partition since")
	})
}

// Its signs of life do not arrive.
func TestTheProcessThatServesThePageIsAlive(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Gone(t.Context(), operate.Process{Run: "here"}); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "Well. Nothing has halted.", "billing/orders/0 claimed here (this process)")
}
