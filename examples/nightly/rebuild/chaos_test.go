package rebuild

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

var (
	chaosTicks  = flag.Int("chaos.ticks", 500, "ticks of all jobs together")
	chaosFaults = flag.Int("chaos.incidents", 100, "freezes and kills")
	chaosSeed   = flag.Uint64("chaos.seed", 1, "where incidents strike, and when the store of leases restarts")
)

func TestChaosEachTickTakesEffectOnce(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("EPOCHFENCE_LONG is not set: it takes minutes")
	}
	n := New(NATS)
	n.Ticks, n.Freezes, n.Kills, n.restarts = *chaosTicks, *chaosFaults/2, *chaosFaults-*chaosFaults/2, *chaosFaults/5
	n.jobs, n.every, n.ttl, n.parts = []string{"search-a", "search-b"}, time.Second, time.Second, 3
	n.Naive, n.chaos, n.Seed = false, true, *chaosSeed
	t.Logf("seed %d", n.Seed)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	b := show.NewBoard(t.Output())
	cs, err := n.play(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	status, c := conclude(b, cs), cs[0]
	if c.Err != nil {
		t.Fatal(c.Err)
	}
	if status != show.StatusExact || c.audit.ticks < n.Ticks || c.audit.builds != c.audit.ticks {
		t.Errorf("status %d, %+v", status, c.audit)
	}
	if stale := c.Crew.Outcomes(show.Stale); stale < n.Freezes/2 {
		t.Errorf("%d steps were refused as stale after %d freezes, so the zombies did not try", stale, n.Freezes)
	}
}
