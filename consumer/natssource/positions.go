package natssource

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

const publishAtOnce = 8

// publishPositions writes changed positions every third of LeaseTTL until ctx ends.
func (s *Source) publishPositions(ctx context.Context) {
	for backoff.Sleep(ctx, jitter(s.LeaseTTL/3)) {
		due := make(chan *tenure)
		var writers sync.WaitGroup
		for range publishAtOnce {
			writers.Go(func() {
				for t := range due {
					limited, cancel := t.UntilLost(ctx)
					limited, stop := context.WithTimeout(limited, s.LeaseTTL/3)
					t.publish(limited)
					stop()
					cancel()
				}
			})
		}
		for _, t := range s.running() {
			due <- t
		}
		close(due)
		writers.Wait()
	}
}

// jitter returns d less up to a fifth, so that requests of many members spread out.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
