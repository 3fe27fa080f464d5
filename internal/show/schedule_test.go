package show

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/bubble"
)

func TestAScheduleFollowsFromItsSeed(t *testing.T) {
	a := newSchedule(7, 9, 3, []Point{InHand, AfterWrites}, []Point{AfterCommit})
	if b := newSchedule(7, 9, 3, []Point{InHand, AfterWrites}, []Point{AfterCommit}); !reflect.DeepEqual(a, b) {
		t.Errorf("one seed, two schedules:\n%v\n%v", a, b)
	}
	if b := newSchedule(8, 9, 3, []Point{InHand, AfterWrites}, []Point{AfterCommit}); reflect.DeepEqual(a, b) {
		t.Error("two seeds, one schedule")
	}
	for i, in := range a {
		if in.kill != (i%2 == 1) {
			t.Errorf("incident %d: kill is %v", i, in.kill)
		}
		if in.after <= 0 || in.after >= 1 || i > 0 && in.after <= a[i-1].after {
			t.Errorf("incident %d begins at %v of the load", i, in.after)
		}
	}
}

func TestALoadOfAnyLengthHasAFreezeAndAKill(t *testing.T) {
	for load, want := range map[time.Duration]int{0: 2, time.Second: 2, 24 * time.Second: 3, 2 * time.Minute: 15} {
		if got := incidents(load, 8*time.Second); got != want {
			t.Errorf("%v: %d incidents, want %d", load, got, want)
		}
	}
}

func TestThePaceSpreadsTheLoadAndHoldsBackAShareForEachIncident(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPace(1200, 10*time.Second, 2) // 100 for each incident
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			for {
				if from, to, err := p.next(ctx); from == to || err != nil {
					done <- err
					return
				}
			}
		}()
		at := func(d time.Duration, want int) {
			t.Helper()
			<-time.After(d) // virtual: it ends when everyone waits
			synctest.Wait()
			if got := p.Sent(); got != want {
				t.Errorf("%d sent, want %d", got, want)
			}
		}
		at(5*time.Second, 600)
		at(time.Minute, 1000)
		p.release()
		at(time.Second, 1100)
		p.release()
		at(time.Second, 1200)
		if err := <-done; err != nil {
			t.Error(err)
		}
		cancel()
	})
}
