package schedule

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

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

// wrong lets the pod's clock be off by what is stored.
func (p *pod) wrong() *atomic.Int64 {
	var off atomic.Int64
	p.jobs.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
	return &off
}

func (p *pod) joined() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s consumer.Status
	for _, e := range p.events {
		s.Observe(e)
	}
	return s.Joined()
}

func TestAPodWhoseClockIsWrongGivesItsJobsToOthers(t *testing.T) {
	for name, off := range map[string]time.Duration{"an hour behind": -time.Hour, "two days behind": -48 * time.Hour, "two days ahead": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				j := writes("often", "@every 10m")
				bad := w.newPod("bad", j)
				clock := bad.wrong()
				bad.start(plain, consumer.Options{})
				w.until("01 00:15:00")
				good := w.pod("good", j)
				clock.Store(int64(off))
				w.until("01 00:55:00")
				w.ran("often", "01 00:10:00", "01 00:20:00", "01 00:30:00", "01 00:40:00", "01 00:50:00")
				if h, ok := bad.halted(); ok {
					t.Errorf("halted: %v", h.Err)
				}
				if joined, cause := bad.joined(); joined || !errors.Is(cause, ErrClock) {
					t.Errorf("joined: %t, %v", joined, cause)
				}
				good.end()
				clock.Store(0)
				w.until("01 01:05:00")
				w.ran("often", "01 00:10:00", "01 00:20:00", "01 00:30:00", "01 00:40:00", "01 00:50:00", "01 01:00:00")
				if joined, cause := bad.joined(); !joined {
					t.Errorf("the clock is right again: not joined, %v", cause)
				}
				bad.end()
			})
		})
	}
}

// The store's clock may be the wrong one.
func TestAJobThatNobodyElseTakesRunsAlthoughTheClocksDiffer(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.newPod("alone", writes("often", "@every 10m"))
		p.wrong().Store(int64(5 * time.Minute))
		p.start(plain, consumer.Options{})
		w.until("01 00:36:00")
		w.ran("often", "01 00:10:00", "01 00:20:00", "01 00:30:00", "01 00:40:00")
		p.end()
	})
}

func TestClocksAreComparedBesideTheTimeOfTheAnswer(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ahead, took time.Duration
		says        string
	}{
		{0, 0, ""},
		{time.Minute, 0, ""},
		{-time.Minute, 0, ""},
		{61 * time.Second, 0, "1m1s ahead"},
		{61 * time.Second, 2 * time.Second, ""},
		{-61 * time.Second, 2 * time.Second, "1m1s behind"},
	} {
		err := compare(at.Add(c.ahead), at, c.took)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrClock) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v ahead after %v: %v, want %q", c.ahead, c.took, err, c.says)
		}
	}
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
