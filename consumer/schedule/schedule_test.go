package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestEachTickRunsOnceInThreeProcesses(t *testing.T) {
	inWorld(t, func(w *world) {
		var pods []*pod
		for n := range 3 {
			pods = append(pods, w.pod(fmt.Sprint("pod", n), writes("nightly", "30 2 * * *"), writes("hourly", "@hourly")))
		}
		w.until("01 03:30:00")
		w.ran("nightly", "01 02:30:00")
		w.ran("hourly", "01 01:00:00", "01 02:00:00", "01 03:00:00")
		for _, p := range pods {
			p.end()
		}
	})
}

func TestTheFirstClaimOfAJobSaysWhenItsFirstTickIsDue(t *testing.T) {
	for _, start := range []consumer.StartPolicy{consumer.StartCommitted, consumer.StartLatest} {
		t.Run(start.String(), func(t *testing.T) {
			inWorld(t, func(w *world) {
				job := writes("nightly", "30 2 * * *")
				job.Zone, job.Jitter = "Europe/Berlin", time.Hour
				p := w.podWith("a", func(h consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx] { return h }, consumer.Options{Start: start}, job)
				w.until("01 00:01:00")
				due := time.Date(2000, 1, 1, 1, 30, 0, 0, time.UTC).Add(p.jobs.jobs["nightly"].plan.delay)
				want := fmt.Sprintf(`begins="with its ticks from 2000-01-01T00:00:01Z on; the first is due at %s+01:00"`, due.Add(time.Hour).Format("2006-01-02T15:04:05"))
				if !w.says(want) || w.says("as the group had committed") || w.says("Options.Start") {
					t.Errorf("it does not say %s, but\n%s", want, w.said.String())
				}
				p.end()
				for line := range strings.Lines(w.said.String()) {
					if strings.Contains(line, "=946") { // 2000 in microseconds
						t.Errorf("the line has the number of a tick: %s", line)
					}
				}
				if !w.says("next=2000-01-01T01:00:01+01:00") {
					t.Errorf("no line says where the job is:\n%s", w.said.String())
				}
			})
		})
	}
}

func TestATickThatComesWhileNobodyIsThereRunsLate(t *testing.T) {
	inWorld(t, func(w *world) {
		last, all, late := writes("last", "@hourly"), writes("all", "@hourly"), writes("late", "@hourly")
		all.CatchUp = CatchUpAll
		late.MaxLate = 10 * time.Minute
		jobs := []memJob{last, all, late}
		w.pod("first", jobs...).endAt("01 01:30:00")
		w.until("01 04:30:00")
		p := w.pod("second", jobs...)
		w.until("01 05:30:00")
		w.ran("last", "01 01:00:00", "01 04:00:00 missed 2", "01 05:00:00")
		w.ran("all", "01 01:00:00", "01 02:00:00", "01 03:00:00", "01 04:00:00", "01 05:00:00")
		w.ran("late", "01 01:00:00", "01 05:00:00")
		if !w.says(`msg="ticks were not run in time, or failed, and are left out" group=billing job=late ticks=3`) {
			t.Error("no line says that three ticks are left out")
		}
		for job, want := range map[string]string{"last": "2 30m0s, 0 0s", "all": "0 2h30m0s, 0 1h30m0s, 0 30m0s, 0 0s", "late": "3 0s, 0 0s"} {
			if got := p.late(job); got != want {
				t.Errorf("%s: missed and late are %s, want %s", job, got, want)
			}
		}
		p.end()
	})
}

// late returns how many ticks were missed before each advance of a job, and how late it was.
func (p *pod) late(job string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, e := range p.events {
		if a, ok := e.(consumer.Advanced); ok && a.Partition.Topic == job {
			all = append(all, fmt.Sprint(a.Missed, " ", a.Late.Truncate(time.Minute)))
		}
	}
	return strings.Join(all, ", ")
}

func TestTheTicksThatALongRunMissedAreCountedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		j := memJob{Name: "long", Cron: "@hourly", Step: func(_ context.Context, _ *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
			return t.Step == 2, nil
		}}
		w.pod("first", j).endAt("01 01:30:00")
		w.until("01 04:30:00")
		p := w.pod("second", j)
		w.until("01 04:40:00")
		if got, want := p.late("long"), "2 30m0s, 0 30m0s, 0 30m0s, 0 0s"; got != want {
			t.Errorf("missed and late are %s, want %s", got, want)
		}
		p.end()
	})
}

func (p *pod) endAt(at string) {
	p.Helper()
	p.until(at)
	p.end()
}

func TestATickThatComesWhileTheJobWorksIsLeftOutOrQueued(t *testing.T) {
	inWorld(t, func(w *world) {
		slow := func(name string, o Overrun) memJob {
			j := writes(name, "@every 10s")
			j.Overrun, j.CatchUp = o, CatchUpAll
			do := j.Do
			j.Do = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) error {
				if t.At.Second() == 20 {
					<-time.After(5 * time.Second)
				}
				if t.At.Second() == 30 {
					<-time.After(6 * time.Second)
				}
				return do(ctx, tx, t, e)
			}
			return j
		}
		skips, queues := slow("skips", OverrunSkip), slow("queues", OverrunQueue)
		skips.Cron, queues.Cron = "*/5 * * * * *", "*/5 * * * * *"
		p := w.pod("a", skips, queues)
		w.until("01 00:01:01")
		p.end()
		w.ran("queues", "01 00:00:05", "01 00:00:10", "01 00:00:15", "01 00:00:20", "01 00:00:25", "01 00:00:30", "01 00:00:35", "01 00:00:40", "01 00:00:45", "01 00:00:50", "01 00:00:55", "01 00:01:00")
		w.ran("skips", "01 00:00:05", "01 00:00:10", "01 00:00:15", "01 00:00:20", "01 00:00:30", "01 00:00:40", "01 00:00:45", "01 00:00:50", "01 00:00:55", "01 00:01:00")
	})
}

// R1: whoever was frozen in a job, and wakes up when another has done it, changes nothing.
func TestAProcessThatIsFrozenInAJobChangesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		frozen, thawed := make(chan struct{}), make(chan struct{})
		j := writes("nightly", "30 0 * * *")
		a := w.newPod("a", j)
		a.sink.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			if as[0].To > as[0].From && as[0].Partition.Topic == "nightly" {
				a.wire.set(true)
				close(frozen)
				<-thawed // it does not see that its lease is over
			}
			return do()
		}})
		a.start(plain, consumer.Options{HangTimeout: time.Hour})
		w.until("01 00:10:00")
		b := w.pod("b", j)
		<-frozen
		w.until("01 00:31:00")
		w.ran("nightly", "01 00:30:00")
		a.wire.set(false)
		close(thawed)
		w.until("01 01:00:00")
		w.ran("nightly", "01 00:30:00")
		a.end()
		b.end()
	})
}

func plain(h consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx] { return h }

// stepping is a job of n steps, each of which takes a second.
func stepping(name, cron string, n int) memJob {
	return memJob{Name: name, Cron: cron, Step: func(ctx context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
		if t.Step == n { // its process has ended after the last one
			return true, nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		tx.Append(name, t.line())
		return t.Step == n-1, nil
	}}
}

func TestALongJobContinuesAfterItsLastStepInAnotherProcess(t *testing.T) {
	inWorld(t, func(w *world) {
		j := stepping("reindex", "0 1 * * *", 10)
		a := w.pod("a", j)
		w.until("01 01:00:04")
		w.ran("reindex", "01 01:00:00", "01 01:00:00 step 1", "01 01:00:00 step 2", "01 01:00:00 step 3")
		a.wire.set(true) // killed, as far as others can tell
		a.sink.Script(memsink.Hooks{Commit: func(context.Context, []epoch.Advance, func() error) error { return epoch.ErrInDoubt }})
		b := w.pod("b", j)
		w.until("01 02:00:00")
		var want []string
		for n := range 10 {
			want = append(want, Tick{At: clock(t, "01 01:00:00"), Step: n}.line())
		}
		w.ran("reindex", want...)
		if f := w.fence("reindex"); placeOf(f.Next).step != 0 {
			t.Errorf("it ends at %d", f.Next)
		}
		b.end()
		a.end()
	})
}

func TestAfterTheLastStepItsProcessEndsAndStepIsCalledOnceMore(t *testing.T) {
	inWorld(t, func(w *world) {
		j := stepping("reindex", "0 1 * * *", 2)
		a := w.newPod("a", j)
		a.sink.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			if placeOf(as[0].From).step < 2 {
				return do()
			}
			a.stop()
			return epoch.ErrInDoubt // and it never arrives
		}})
		a.start(plain, consumer.Options{})
		w.until("01 01:10:00")
		if err := <-a.done; err != nil {
			t.Fatal(err)
		}
		if f := w.fence("reindex"); placeOf(f.Next).step != 2 {
			t.Fatalf("the first process ends at %d", f.Next)
		}
		b := w.pod("b", j)
		w.until("01 01:20:00")
		w.ran("reindex", "01 01:00:00", "01 01:00:00 step 1")
		if f := w.fence("reindex"); placeOf(f.Next).step != 0 {
			t.Errorf("it ends at %d", f.Next)
		}
		b.end()
	})
}

func TestAStepThatOnFailureTakesEndsTheRun(t *testing.T) {
	inWorld(t, func(w *world) {
		j := stepping("reindex", "0 * * * *", 5)
		step := j.Step
		j.Step = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) (bool, error) {
			if t.Step == 2 && t.At.Hour() == 1 {
				return false, consumer.Permanent(errors.New("no such index"))
			}
			return step(ctx, tx, t, e)
		}
		p := w.podWith("a", func(h consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx] {
			return h.OnFailure(w.db.DeadLetter)
		}, consumer.Options{}, j)
		w.until("01 01:30:00")
		w.ran("reindex", "01 01:00:00", "01 01:00:00 step 1")
		dead := w.db.DeadLetters()
		if len(dead) != 1 || TickOf(dead[0].Message).Step != 2 {
			t.Errorf("dead letters: %+v", dead)
		}
		w.until("01 02:10:00")
		if n := len(w.db.List("reindex")); n != 2+5 {
			t.Errorf("%d steps after the second hour", n)
		}
		p.end()
	})
}

func TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt(t *testing.T) {
	inWorld(t, func(w *world) {
		j := stepping("reindex", "0 * * * *", 1_000_000)
		j.MaxRun = time.Minute
		p := w.pod("a", j)
		w.until("01 01:30:00")
		n := len(w.db.List("reindex"))
		h, ok := p.halted()
		if !ok || n < 55 || n > 65 {
			t.Fatalf("%d steps, halted: %v", n, ok)
		}
		want := fmt.Sprintf("the run of 2000-01-01T01:00:00Z: this process has worked on it for longer than MaxRun, 1m0s: needs an operator; to leave the other steps out: epochfence skip billing/reindex/0 --through %d", place{at: clock(t, "01 01:00:01")}.offset()-1)
		if text := h.Err.Error(); !strings.Contains(text, want) || h.Reason != consumer.ReasonBlocked {
			t.Errorf("%v: it says %q, want %q", h.Reason, text, want)
		}
		f := w.fence("reindex")
		a := operate.NewAct(operate.ActSkip, f, "amy", "it never ends")
		a.To = &epoch.Position{Offset: placeOf(f.Next).after().offset(), Mark: epoch.NoMark}
		if _, err := w.db.Operator().Act(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		w.until("01 02:00:10")
		if more := len(w.db.List("reindex")) - n; more < 8 {
			t.Errorf("%d steps in the next hour", more)
		}
		p.end()
	})
}

func TestAnOperatorRunsAJobNow(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.pod("a", writes("nightly", "30 * * * *"), stepping("steps", "30 * * * *", 3))
		w.until("01 00:45:00")
		for _, job := range []string{"nightly", "steps"} {
			f := w.fence(job)
			a, err := operate.NewRun(f, "amy", "the customer asked")
			if err != nil {
				t.Fatal(err)
			}
			after, err := w.db.Operator().Act(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := operate.NewRun(after, "amy", "again"); !errors.Is(err, operate.ErrNothingToDo) {
				t.Errorf("a second request: %v", err)
			}
		}
		w.until("01 01:45:00")
		w.ran("nightly", "01 00:30:00", "01 00:30:01 requested", "01 01:30:00")
		w.ran("steps", "01 00:30:00", "01 00:30:00 step 1", "01 00:30:00 step 2",
			"01 00:30:01 requested", "01 00:30:01 step 1 requested", "01 00:30:01 step 2 requested",
			"01 01:30:00", "01 01:30:00 step 1", "01 01:30:00 step 2")
		log, err := w.db.Operator().History(t.Context(), operate.HistoryQuery{})
		if err != nil || !slices.ContainsFunc(log, func(d operate.Decision) bool { return d.By == "amy" && d.Reason == "the customer asked" }) {
			t.Errorf("%v: the audit log has no request", err)
		}
		p.end()
	})
}

func TestARequestIsRefusedWhereItWouldBreakARun(t *testing.T) {
	t.Parallel()
	f := epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Group: group, Topic: "job"}, Log: operate.JobLog}, Next: place{at: clock(t, "01 01:00:00"), step: 3}.offset(), Epoch: 1}
	if _, err := operate.NewRun(f, "amy", "now"); !errors.Is(err, operate.ErrAtWork) {
		t.Errorf("between two steps: %v", err)
	}
	f.Log = "a topic of Kafka"
	if _, err := operate.NewRun(f, "amy", "now"); !errors.Is(err, operate.ErrAct) {
		t.Errorf("of no job: %v", err)
	}
}

func TestAClockThatIsAheadRunsATickEarlyAndNobodyTwice(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("nightly", "30 * * * *")
		a := w.newPod("a", j)
		a.jobs.now = func() time.Time { return time.Now().Add(20 * time.Minute) }
		a.start(plain, consumer.Options{})
		w.until("01 00:11:00")
		w.ran("nightly", "01 00:30:00")
		a.end()
		b := w.pod("b", j)
		w.until("01 01:31:00")
		w.ran("nightly", "01 00:30:00", "01 01:30:00")
		b.end()
	})
}

func TestAPositionFarAheadOfTheClockHaltsTheJob(t *testing.T) {
	inWorld(t, func(w *world) {
		j := writes("nightly", "30 * * * *")
		a := w.newPod("a", j)
		a.jobs.now = func() time.Time { return time.Now().AddDate(0, 0, 3) }
		a.start(plain, consumer.Options{})
		w.until("01 00:40:00")
		a.end()
		b := w.pod("b", j)
		w.until("01 00:50:00")
		h, ok := b.halted()
		if !ok || !errors.Is(h.Err, ErrAhead) || h.Reason != consumer.ReasonBlocked {
			t.Errorf("halted: %v, %v", ok, h.Err)
		}
		b.end()
	})
}

func TestJitterDelaysTheTicksOfAJobAlwaysBySoMuch(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for n := range 50 {
		d := delay(group, fmt.Sprint("job", n), 10*time.Minute)
		if d < 0 || d >= 10*time.Minute || d != delay(group, fmt.Sprint("job", n), 10*time.Minute) {
			t.Fatalf("job %d is delayed by %v", n, d)
		}
		seen[d] = true
	}
	if len(seen) < 40 {
		t.Errorf("50 jobs have %d delays", len(seen))
	}
	inWorldNow(t, func(w *world) {
		j := writes("nightly", "30 2 * * *")
		j.Jitter = 10 * time.Minute
		late := delay(group, "nightly", j.Jitter)
		p := w.pod("a", j)
		<-time.After(2*time.Hour + 30*time.Minute + late - time.Second)
		w.ran("nightly")
		<-time.After(2 * time.Second)
		w.ran("nightly", "01 02:30:00")
		p.end()
	})
}

func TestASingletonWorksAlways(t *testing.T) {
	inWorld(t, func(w *world) {
		j := memJob{Name: "poller", Cron: Always, Step: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
			<-time.After(300 * time.Millisecond)
			tx.Append("poller", fmt.Sprint(t.Step))
			return t.Step == 4, nil // nothing left to do
		}}
		a, b := w.pod("a", j), w.pod("b", j)
		w.until("01 00:10:00")
		n := len(w.db.List("poller"))
		if n < 10*60*2 || n > 10*60*4 {
			t.Errorf("it was called %d times in ten minutes", n)
		}
		if w.says("left out") {
			t.Error("the log has lines about ticks that came while it worked")
		}
		a.end()
		b.end()
	})
}

// The store of the leases is out of reach for ten minutes after midnight.
func TestTwoHundredJobsOnThreeProcessesWhoseStoreIsAway(t *testing.T) {
	inWorld(t, func(w *world) {
		var jobs []memJob
		for n := range 200 {
			jobs = append(jobs, writes(fmt.Sprint("job", n), "3 0 * * *"))
		}
		var pods []*pod
		for n := range 3 {
			pods = append(pods, w.pod(fmt.Sprint("pod", n), jobs...))
		}
		w.until("01 00:02:00")
		for _, p := range pods {
			p.wire.set(true)
		}
		w.until("01 00:12:00")
		for _, p := range pods {
			p.wire.set(false)
		}
		w.until("01 00:14:00")
		for _, j := range jobs {
			w.ran(j.Name, "01 00:03:00")
		}
		for _, p := range pods {
			p.end()
		}
	})
}

func TestAJobThatOneProcessDoesNotKnowRunsInAnother(t *testing.T) {
	inWorld(t, func(w *world) {
		old, both := writes("old", "@hourly"), writes("both", "@hourly")
		a := w.pod("a", old, both)
		w.until("01 01:30:00")
		b := w.pod("b", both, writes("new", "@hourly"))
		w.until("01 03:30:00")
		for _, p := range []*pod{a, b} {
			p.end()
		}
		synctest.Wait()
		w.ran("old", "01 01:00:00", "01 02:00:00", "01 03:00:00")
		w.ran("both", "01 01:00:00", "01 02:00:00", "01 03:00:00")
		w.ran("new", "01 02:00:00", "01 03:00:00")
	})
}

func TestTheReplayOfAStepLeavesThePresentRunAlone(t *testing.T) {
	t.Parallel()
	calls := 0
	s, err := New(Options{Store: memstore.New(), Group: group}, Job[int]{Name: "reindex", Cron: "@daily", Step: func(_ context.Context, _ int, tick Tick, _ epoch.Epoch) (bool, error) {
		calls++
		return tick.Step == 5, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	step := func(n int, replay int64) epoch.Offset {
		m := consumer.Message{Partition: epoch.Partition{Group: group, Topic: "reindex"}, Offset: place{clock(t, "01 01:00:00"), n}.offset(), Replay: replay, Under: &epoch.Fence{Claim: epoch.ClaimID{1}}}
		if err := s.handle(t.Context(), 0, m, 1); err != nil {
			t.Fatal(err)
		}
		return m.Offset
	}
	course := s.jobs["reindex"].course
	present := step(7, 0)
	step(5, 1)
	if calls != 2 || course.isOver(present, epoch.ClaimID{1}) || course.step != present {
		t.Errorf("after %d calls the present step is %d", calls, course.step)
	}
}
