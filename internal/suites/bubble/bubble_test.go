package bubble

import (
	"sync"
	"testing"
	"time"
)

// Under the race detector and without bubble this ends the process within a second.
func TestTimersThatExpireAtOnceDoNotEndTheProcess(t *testing.T) {
	Test(t, func(*testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5000 {
					expired := time.NewTimer(0)
					select {
					case <-expired.C:
					default:
					}
				}
			})
		}
		wg.Wait()
	})
}
