package rebuild

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/epochfence/epochfence/internal/backoff"
)

// startRedis starts miniredis in this process, whose times to live run down by this process's clock.
func startRedis() (address string, stop func(), err error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return "", nil, fmt.Errorf("start miniredis: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		for last := time.Now(); backoff.Sleep(ctx, 20*time.Millisecond); {
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
	}()
	return m.Addr(), func() { end(); m.Close() }, nil
}
