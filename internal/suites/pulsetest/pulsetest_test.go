package pulsetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestAPulseTellsTheLongestTimeWithoutAnAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		var takes atomic.Int64
		p := Start(t, func(context.Context) error {
			<-time.After(time.Duration(takes.Load()))
			if refuses.Load() {
				return errors.New("refused")
			}
			return nil
		})
		wait := func(d time.Duration) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
		}
		wait(time.Second)
		if got := p.Stalled(); got != Every {
			t.Errorf("%v while all is answered at once, want %v", got, Every)
		}
		refuses.Store(true)
		wait(3 * time.Second)
		if got := p.Stalled(); got != 3*time.Second {
			t.Errorf("%v while nothing is answered, want 3s", got)
		}
		refuses.Store(false)
		wait(time.Second)
		if got := p.Stalled(); got != 3*time.Second+Every {
			t.Errorf("%v when all is answered again, want %v", got, 3*time.Second+Every)
		}
		takes.Store(int64(5 * time.Second))
		wait(20 * time.Second)
		if got := p.Stalled(); got != 5*time.Second+Every {
			t.Errorf("%v with a late answer, want %v", got, 5*time.Second+Every)
		}
	})
}
