package schedule

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// LeaseTTL is 15 s.
func TestTheJobsOfAProcessThatWasRemovedRunElsewhereAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.pod("a", writes("report", "* * * * *"))
		w.until("01 00:01:30")
		b := w.pod("b", writes("report", "* * * * *"))
		w.until("01 00:01:55")
		id, session, static := a.jobs.Member()
		if id == "" || session != 15*time.Second || static {
			t.Errorf("member %q, session %v, static %t", id, session, static)
		}
		a.wire.set(true) // from now on it cannot claim, nor leave
		for range 2 {
			if err := b.jobs.Remove(t.Context(), id, "test"); err != nil {
				t.Error(err)
			}
		}
		w.until("01 00:01:56")
		if f := w.fence("report"); !strings.HasPrefix(f.Owner, "b@") {
			t.Errorf("after a second: %+v", f)
		}
		w.until("01 00:02:30")
		w.ran("report", "01 00:01:00", "01 00:02:00")
		a.wire.set(false)
		w.until("01 00:03:30")
		w.ran("report", "01 00:01:00", "01 00:02:00", "01 00:03:00")
		if now, _, _ := a.jobs.Member(); now == "" || now == id {
			t.Errorf("it was %q, and is %q", id, now)
		}
		a.end()
		b.end()
		if id, _, _ := a.jobs.Member(); id != "" {
			t.Errorf("it has left, and is %q", id)
		}
	})
}

func TestAProcessThatWasRemovedTakesJobsAgainOnceItIsReady(t *testing.T) {
	inWorld(t, func(w *world) {
		var ready atomic.Bool
		a := w.newPod("a", writes("report", "* * * * *"), writes("bill", "* * * * *"))
		a.jobs.RejoinWhen(func(context.Context) error {
			if !ready.Load() {
				return errors.New("the database is out of reach")
			}
			return nil
		})
		a.start(func(h consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx] { return h }, consumer.Options{})
		b := w.pod("b", writes("report", "* * * * *"), writes("bill", "* * * * *"))
		w.until("01 00:01:55")
		id, _, _ := a.jobs.Member()
		if err := b.jobs.Remove(t.Context(), id, "test"); err != nil {
			t.Error(err)
		}
		owners := func() string { return w.fence("report").Owner[:2] + w.fence("bill").Owner[:2] }
		w.until("01 00:05:30")
		if now, _, _ := a.jobs.Member(); id == "" || now != "" || owners() != "b@b@" {
			t.Errorf("it was %q and is %q, and the owners are %s", id, now, owners())
		}
		ready.Store(true)
		w.until("01 00:07:30")
		if now, _, _ := a.jobs.Member(); now == "" || now == id || owners() != "a@b@" && owners() != "b@a@" {
			t.Errorf("it was %q and is %q, and the owners are %s", id, now, owners())
		}
		a.end()
		b.end()
	})
}

func TestWhoHasNotJoinedRemovesNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		jobs := w.newPod("a", writes("report", "* * * * *")).jobs
		if id, _, _ := jobs.Member(); id != "" {
			t.Errorf("it is %q", id)
		}
		if err := jobs.Remove(t.Context(), "X", "test"); err == nil {
			t.Error("it has removed somebody")
		}
	})
}
