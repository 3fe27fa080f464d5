package show

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/bubble"
)

func TestALoadOfAnyLengthHasAFreezeAndAKill(t *testing.T) {
	for load, want := range map[time.Duration]int{0: 2, time.Second: 2, 24 * time.Second: 3, 2 * time.Minute: 15} {
		if got := (&Settings{Duration: load, Every: 8 * time.Second}).incidents(); got != want {
			t.Errorf("%v: %d incidents, want %d", load, got, want)
		}
	}
}

func TestThePaceSpreadsTheLoadAndHoldsBackTwoSharesForEachIncident(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPace(1200, 10*time.Second, 1) // 200 twice for an incident
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
			if got := int(p.sent.Load()); got != want {
				t.Errorf("%d sent, want %d", got, want)
			}
		}
		at(5*time.Second, 600)
		at(time.Minute, 800)
		p.release()
		at(time.Second, 1000)
		p.release()
		at(time.Second, 1200)
		if err := <-done; err != nil {
			t.Error(err)
		}
		cancel()
	})
}
