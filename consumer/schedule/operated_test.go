package schedule

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func (w *world) act(kind operate.ActKind, job string, to epoch.Offset) {
	w.Helper()
	a := operate.NewAct(kind, w.fence(job), "amy", "because")
	if to >= 0 {
		a.To = &epoch.Position{Offset: to, Mark: epoch.NoMark}
	}
	if _, err := w.db.Operator().Act(w.Context(), a); err != nil {
		w.Fatal(err)
	}
}

func (w *world) lines(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.said.String(), what)
}

// docs/halts.md: skip --through OFFSET, with the offset of the message that has failed.
func TestASkipOfAFailedTickLeavesItOut(t *testing.T) {
	inWorld(t, func(w *world) {
		j := memJob{Name: "nightly", Cron: "@hourly", Do: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) error {
			if t.At.Hour() == 2 && t.Step == 0 {
				return consumer.Permanent(errors.New("cannot"))
			}
			tx.Append("nightly", t.line())
			return nil
		}}
		p := w.pod("a", j)
		w.until("01 02:10:00")
		h, _ := p.halted()
		var he *consumer.HandlerError
		if !errors.As(h.Err, &he) {
			t.Fatal(h.Err)
		}
		if says := he.Error(); !strings.Contains(says, "tick 2000-01-01T02:00:00Z: cannot") {
			t.Errorf("the halt does not say the time: %s", says)
		}
		w.act(operate.ActSkip, "nightly", he.Offset+1)
		w.until("01 03:10:00")
		w.ran("nightly", "01 01:00:00", "01 03:00:00")
		p.end()
	})
}

func TestASkipOfAStepLeavesTheRestOfTheRunOut(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(map[bool]string{false: "here", true: "in another process"}[elsewhere], func(t *testing.T) {
			inWorld(t, func(w *world) {
				j := stepping("reindex", "0 1 * * *", 6)
				step := j.Step
				j.Step = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) (bool, error) {
					if t.Step == 2 {
						return false, consumer.Permanent(errors.New("no such index"))
					}
					return step(ctx, tx, t, e)
				}
				p := w.pod("a", j)
				w.until("01 01:10:00")
				h, _ := p.halted()
				var he *consumer.HandlerError
				if !errors.As(h.Err, &he) {
					t.Fatal(h.Err)
				}
				if elsewhere {
					p.end()
				}
				w.act(operate.ActSkip, "reindex", he.Offset+1)
				if elsewhere {
					p = w.pod("b", j)
				}
				w.until("01 01:30:00")
				w.ran("reindex", "01 01:00:00", "01 01:00:00 step 1")
				p.end()
			})
		})
	}
}

func TestARequestedRunTakesThePlaceOfATickAtThePosition(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("hourly", "@hourly")
		j.MaxLate = time.Minute
		w.until("01 00:58:00")
		p := w.pod("a", j)
		w.until("01 00:59:00")
		w.act(operate.ActRewind, "hourly", place{at: clock(t, "01 01:00:00")}.offset()) // from the next hour on
		a, err := operate.NewRun(w.fence("hourly"), "amy", "now")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.Operator().Act(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		w.until("01 02:10:00")
		w.ran("hourly", "01 01:00:00 requested", "01 02:00:00")
		p.end()
	})
}

func TestAPositionThatIsNoWholeSecondIsRoundedUp(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.pod("a", writes("hourly", "@hourly"))
		w.until("01 01:10:00")
		for _, o := range []epoch.Offset{5, 999_999, place{clock(t, "01 01:00:00"), 123}.offset()} {
			w.act(operate.ActRewind, "hourly", o)
			<-time.After(time.Minute)
		}
		w.until("01 02:10:00")
		if got := w.db.List("hourly"); len(got) != 4 || got[0] != "01 01:00:00" || !strings.HasPrefix(got[1], "01 01:00:00 missed") || got[3] != "01 02:00:00" {
			t.Errorf("it ran at %q", got)
		}
		if _, halted := p.halted(); halted {
			t.Error("it has halted")
		}
		p.end()
	})
}

// claimed waits for a job's first claim.
func (w *world) claimed(job string) epoch.Fence {
	w.Helper()
	for {
		f, err := epoch.FenceOf(w.Context(), w.db, epoch.Partition{Group: group, Topic: job})
		if err == nil && f.Epoch > 0 {
			return f
		}
		if err != nil && !errors.Is(err, epoch.ErrMissing) {
			w.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
	}
}

func TestEachTickIsInTheAuditLog(t *testing.T) {
	inWorld(t, func(w *world) {
		failed := 0
		nightly := memJob{Name: "nightly", Cron: "@hourly", Do: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) error {
			if t.At.Hour() == 2 && failed < 2 {
				failed++
				return errors.New("not yet")
			}
			tx.Append("nightly", t.line())
			return nil
		}}
		long := memJob{Name: "long", Cron: "@hourly", Step: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
			tx.Append("long", t.line())
			return t.Step == 2, nil
		}}
		busy := memJob{Name: "busy", Cron: "@every 1s", Do: func(context.Context, *memsink.Tx, Tick, epoch.Epoch) error { return nil }}
		p := w.pod("a", nightly, long, busy)
		w.until("01 03:10:00")
		p.end()
		ticks := func(job string) (ds []operate.Decision) {
			part := w.fence(job).Partition
			ds, err := w.db.Operator().History(w.Context(), operate.HistoryQuery{Partition: &part, Kinds: []operate.DecisionKind{operate.DecidedTick}, Limit: 100_000})
			if err != nil {
				w.Fatal(err)
			}
			slices.Reverse(ds)
			return ds
		}
		for job, want := range map[string]string{"nightly": "attempt 3; the one before failed: ", "long": "3 steps"} {
			ds := ticks(job)
			if len(ds) != 3 {
				w.Fatalf("%s has %d entries, want 3: %+v", job, len(ds), ds)
			}
			for i, d := range ds {
				at, step := operate.JobTime(d.From)
				if at.Hour() != i+1 || step != 0 || d.Owner == "" || d.Epoch == 0 || !strings.HasPrefix(d.Reason, "done, begun 2000-01-01T0") {
					w.Errorf("%s: %+v", job, d)
				}
			}
			if d := ds[1]; !strings.Contains(d.Reason, want) {
				w.Errorf("%s: %q does not say %q", job, d.Reason, want)
			}
		}
		if ds := ticks("busy"); len(ds) < 120 || len(ds) > 195 || !strings.Contains(ds[1].Reason, " ticks were done since ") {
			w.Errorf("a job that ran each second for three hours has %d entries: %+v", len(ds), ds[:2])
		}
	})
}
