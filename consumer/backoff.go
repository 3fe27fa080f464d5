package consumer

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// retryWait doubles from low to high, with jitter, and stays within the two.
type retryWait struct {
	low, high time.Duration
	backoff.BackOff
}

func newRetryWait(low, high time.Duration) retryWait {
	return retryWait{low, high, backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(low),
		backoff.WithMaxInterval(high),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0), // never gives up by itself
	)}
}

func (w retryWait) next() time.Duration { return min(max(w.NextBackOff(), w.low), w.high) }
