package waits

import (
	"context"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestWaitsGrowToTheMostAndStayWithinTheTwo(t *testing.T) {
	t.Parallel()
	const least, most = 10 * time.Millisecond, time.Second
	b := New(least, most)
	for round := range 2 {
		first := b.Next()
		if first > 2*least {
			t.Errorf("round %d: the first wait is %v", round, first)
		}
		longest := first
		for range 1000 { // a backoff that gave up would say so by a negative wait
			d := b.Next()
			if d < least || d > most {
				t.Fatalf("a wait of %v is not within %v and %v", d, least, most)
			}
			longest = max(longest, d)
		}
		if longest < most/2 {
			t.Errorf("round %d: no wait of a thousand is longer than %v", round, longest)
		}
		b.Reset()
	}
}

func TestASleepEndsWithItsTimeOrItsContext(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Second) || time.Since(began) != time.Second {
			t.Errorf("a sleep of a second took %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if Sleep(ctx, time.Hour) || time.Since(began) != 2*time.Second {
			t.Errorf("a sleep whose context ended went on for %v", time.Since(began))
		}
		if Sleep(ctx, 0) {
			t.Error("a sleep under a context that has ended says to continue")
		}
	})
}
