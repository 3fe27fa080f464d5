package schedule

import (
	"context"
	"errors"
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
