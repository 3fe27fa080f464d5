package schedule

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A step fails as A loses the lease. B commits that one step and leaves. A continues.
func TestAStepThatFailedHereAndWasCommittedElsewhereIsFollowedByTheNext(t *testing.T) {
	inWorld(t, func(w *world) {
		const n = 10
		var slow atomic.Int64 // the step of a that waits for something
		slow.Store(4)
		step := func(slow func() int64) memJob {
			return memJob{Name: "reindex", Cron: "0 1 * * *", Step: func(ctx context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
				if t.Step == n {
					return true, nil
				}
				takes := time.Second
				if int64(t.Step) == slow() {
					takes = time.Hour
				}
				select {
				case <-time.After(takes):
				case <-ctx.Done():
					return false, ctx.Err()
				}
				tx.Append("reindex", t.line())
				return t.Step == n-1, nil
			}}
		}
		a := w.pod("a", step(slow.Load))
		w.until("01 01:00:05")
		b := w.pod("b", step(func() int64 { return 5 }))
		<-time.After(3 * time.Second)
		a.wire.set(true) // A loses the lease in step 4
		for len(w.db.List("reindex")) < 5 {
			<-time.After(100 * time.Millisecond)
		}
		slow.Store(-1)
		a.wire.set(false)
		b.end() // it has committed step 4, and leaves in step 5
		w.until("01 01:30:00")
		if got := w.db.List("reindex"); len(got) != n {
			t.Errorf("%d steps ran: %q; the fence is at %v", len(got), got, placeOf(w.fence("reindex").Next))
		}
		a.end()
	})
}

func TestMaxRunCountsWorkAndNoPause(t *testing.T) {
	inWorld(t, func(w *world) {
		j := stepping("reindex", "0 1 * * *", 100)
		j.MaxRun = 10 * time.Minute
		p := w.pod("a", j)
		w.until("01 01:00:10")
		w.act(operate.ActPause, "reindex", -1)
		w.until("01 01:20:00")
		w.act(operate.ActResume, "reindex", -1)
		w.until("01 01:40:00")
		h, _ := p.halted()
		if n := len(w.db.List("reindex")); n != 100 {
			t.Errorf("%d steps; %v", n, h.Err)
		}
		p.end()
	})
}

func TestWorkWithoutEndIsNotBoundByTheStepsOfATick(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.pod("a", memJob{Name: "poller", Cron: Always, Step: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
			<-time.After(10 * time.Millisecond)
			if t.Step < 2 {
				tx.Append("poller", fmt.Sprint(t.Step))
			}
			return false, nil
		}})
		f := w.claimed("poller")
		a := operate.NewAct(operate.ActRewind, f, "amy", "as if it had worked for long")
		a.To = &epoch.Position{Offset: place{placeOf(f.Next).at, 999_990}.offset(), Mark: between}
		if _, err := w.db.Operator().Act(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		w.until("01 00:01:00")
		if got := w.db.List("poller"); strings.Join(got, "") != "01"+"01" && strings.Join(got, "") != "01" {
			t.Errorf("it began with %q", got)
		}
		if h, halted := p.halted(); halted {
			t.Errorf("it has halted: %v", h.Err)
		}
		p.end()
	})
}

// The answer to the last step's commit is lost, but it has landed: Step is not called once more.
func TestALastStepWhoseCommitWasInDoubtIsNotCalledAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		calls := 0
		j := stepping("reindex", "0 1 * * *", 3)
		step := j.Step
		j.Step = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) (bool, error) {
			calls++
			return step(ctx, tx, t, e)
		}
		p := w.newPod("a", j)
		lost := map[epoch.Offset]bool{}
		p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			err := do()
			if !lost[as[0].From] && as[0].To > as[0].From {
				lost[as[0].From] = true
				return epoch.ErrInDoubt
			}
			return err
		}})
		p.start(plain, consumer.Options{})
		w.until("01 02:00:00")
		w.ran("reindex", "01 01:00:00", "01 01:00:00 step 1", "01 01:00:00 step 2")
		if calls != 3 {
			t.Errorf("%d calls", calls)
		}
		p.end()
	})
}
