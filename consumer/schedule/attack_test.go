package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
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
		w.act(operate.ActSkip, "nightly", he.Offset+1)
		w.until("01 03:10:00")
		w.ran("nightly", "01 01:00:00", "01 03:00:00")
		p.end()
	})
}

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

// The clock was wrong by days, and is set right while the process runs.
func TestAClockThatIsSetRightByDaysHaltsTheJob(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("hourly", "@hourly")
		p := w.newPod("a", j)
		var ahead atomic.Int64
		ahead.Store(int64(72 * time.Hour))
		p.jobs.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		p.start(plain, consumer.Options{})
		w.until("01 01:10:00")
		ahead.Store(0)
		w.until("01 01:20:00")
		if h, ok := p.halted(); !ok || !errors.Is(h.Err, ErrAhead) {
			t.Errorf("halted: %v, %v", ok, h.Err)
		}
		p.end()
	})
}

func TestARequestedRunTakesThePlaceOfATickAtThePosition(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("hourly", "@hourly")
		j.MaxLate = time.Minute
		w.until("01 00:58:00")
		p := w.pod("a", j)
		w.until("01 00:59:00")
		w.act(operate.ActRewind, "hourly", place{at: clock(t, "01 01:00:00")}.offset()) // from the next hour on
		a, err := Request(w.fence("hourly"), "amy", "now")
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

func TestAMachineThatIsSuspendedAtWorkRunsTheLastTickLate(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("hourly", "@hourly")
		var ahead atomic.Int64
		do := j.Do
		j.Do = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) error {
			if t.At.Hour() == 1 {
				ahead.Store(int64(10 * time.Hour)) // wall clock; the monotonic clock stands still
			}
			return do(ctx, tx, t, e)
		}
		p := w.newPod("a", j)
		p.jobs.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		p.start(plain, consumer.Options{})
		w.until("01 01:59:00") // 11:59 by the wall clock
		w.ran("hourly", "01 01:00:00", "01 11:00:00 missed 9")
		p.end()
	})
}

func TestTicksThatAreLeftOutForAHaltedOneAreSaidOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		j := memJob{Name: "fails", Cron: "@every 10m", Do: func(context.Context, *memsink.Tx, Tick, epoch.Epoch) error {
			return consumer.Permanent(errors.New("cannot"))
		}}
		p := w.pod("a", j)
		w.until("01 03:05:00")
		if n := w.lines("left out"); n == 0 || n > 20 {
			t.Errorf("%d lines in three hours say that ticks are left out", n)
		}
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

// claimed waits for a job's first claim.
func (w *world) claimed(job string) epoch.Fence {
	w.Helper()
	for {
		f, err := w.db.Fence(w.Context(), epoch.Partition{Group: group, Topic: job})
		if err == nil && f.Epoch > 0 {
			return f
		}
		if err != nil && !errors.Is(err, epoch.ErrMissing) {
			w.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
	}
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

// Processes are cut off, stopped and evicted, and lose answers: each tick and each step is done once, in order.
func TestChaos(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 1))
				const n = 7
				queued := writes("queued", "*/20 * * * * *")
				queued.CatchUp, queued.Overrun = CatchUpAll, OverrunQueue
				doQ := queued.Do
				queued.Do = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) error {
					if rand.IntN(10) == 0 {
						return errors.New("flaky")
					}
					if rand.IntN(30) == 0 {
						panic("flaky")
					}
					return doQ(ctx, tx, t, e)
				}
				steps := memJob{Name: "steps", Cron: "*/30 * * * * *", CatchUp: CatchUpAll, Overrun: OverrunQueue, Step: func(ctx context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
					if t.Step >= n {
						return true, nil
					}
					if rand.IntN(6) == 0 {
						return false, errors.New("flaky")
					}
					select {
					case <-time.After(time.Duration(rand.IntN(4000)) * time.Millisecond):
					case <-ctx.Done():
						return false, ctx.Err()
					}
					tx.Append("steps", fmt.Sprintf("%d/%d", t.At.Unix(), t.Step))
					return t.Step == n-1, nil
				}}
				var pods []*pod
				var calm atomic.Bool
				start := func(i int) *pod {
					p := w.newPod(fmt.Sprint("p", i), queued, steps)
					p.sink.Script(memsink.Hooks{Commit: func(ctx context.Context, _ []epoch.Advance, do func() error) error {
						if calm.Load() {
							return do()
						}
						switch rand.IntN(12) {
						case 0:
							return epoch.ErrInDoubt
						case 1:
							_ = do()
							return epoch.ErrInDoubt
						case 2:
							<-time.After(time.Duration(rand.IntN(20)) * time.Second)
						}
						return do()
					}})
					p.start(plain, consumer.Options{MaxAttempts: 1000})
					return p
				}
				for i := range 3 {
					pods = append(pods, start(i))
				}
				for range 60 {
					<-time.After(time.Duration(r.IntN(20)) * time.Second)
					i := r.IntN(3)
					switch r.IntN(6) {
					case 0, 1:
						pods[i].wire.set(true)
					case 2, 3:
						pods[i].wire.set(false)
					case 4:
						pods[i].stop()
						if err := <-pods[i].done; err != nil && !errors.As(err, new(*consumer.HungError)) {
							t.Fatal(err)
						}
						pods[i] = start(i)
					case 5:
						job := []string{"queued", "steps"}[r.IntN(2)]
						f, err := w.db.Fence(w.Context(), epoch.Partition{Group: group, Topic: job})
						if err == nil && f.Epoch > 0 {
							_, _ = w.db.Operator().Act(w.Context(), operate.NewAct(operate.ActEvict, f, "amy", "chaos"))
						}
					}
				}
				for _, p := range pods {
					p.wire.set(false)
				}
				calm.Store(true)
				<-time.After(5 * time.Minute)
				now := time.Now().Unix()
				for _, p := range pods {
					p.end()
				}
				got := w.db.List("steps")
				at, next := int64(0), 0
				for _, l := range got {
					var a int64
					var s int
					_, _ = fmt.Sscanf(l, "%d/%d", &a, &s)
					if at == 0 {
						at = a
					}
					if next == n {
						at, next = at+30, 0
					}
					if a != at || s != next {
						t.Fatalf("at %s, want %d/%d", l, at, next)
					}
					next++
				}
				if now-at > 90 {
					t.Errorf("the last run is at %d, now is %d", at, now)
				}
				q := w.db.List("queued")
				for i := 1; i < len(q); i++ {
					a, b := clock(t, q[i-1]), clock(t, q[i])
					if b.Sub(a) != 20*time.Second {
						t.Fatalf("%s then %s", q[i-1], q[i])
					}
				}
				if d := time.Unix(now, 0).Sub(clock(t, q[len(q)-1])); d > time.Minute {
					t.Errorf("queued: last %s, now %v", q[len(q)-1], time.Unix(now, 0).UTC())
				}
			})
		})
	}
}
