package rebuild

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/localnats"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/waits"
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
	t.Logf("seed %d", *chaosSeed)
	random := rand.New(rand.NewPCG(*chaosSeed, 1))
	n := newNightly()
	n.ticks, n.incidents = *chaosTicks, inTurn(*chaosFaults/2, *chaosFaults-*chaosFaults/2)
	n.jobs, n.every, n.ttl, n.parts = []string{"search-a", "search-b"}, time.Second, time.Second, 3
	random.Shuffle(len(n.incidents), func(i, j int) { n.incidents[i], n.incidents[j] = n.incidents[j], n.incidents[i] })

	restart := startLeases(t, n)
	var restarts errgroup.Group
	restarts.SetLimit(1)
	n.disturb = func(ctx context.Context, incident int) {
		wait := time.Duration(random.Int64N(int64(2 * time.Second)))
		if incident%5 == 0 {
			restarts.Go(func() error { waits.Sleep(ctx, wait); return restart() })
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cs, status, err := show.Play(ctx, n, t.Output())
	if err := errors.Join(err, restarts.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := cs[0].Err; err != nil {
		t.Fatal(err)
	}
	if a := cs[0].Side.(*column).audit; status != show.StatusExact || a.ticks < n.ticks || a.builds != a.ticks {
		t.Errorf("status %d, %+v", status, a)
	}
	if stale := cs[0].Crew.Outcomes(show.Stale); stale < *chaosFaults/4 {
		t.Errorf("%d steps were refused as stale after %d freezes, so the zombies did not try", stale, *chaosFaults/2)
	}
}

// startLeases starts the store of leases of a show. restart stops it, and starts it again with its streams,
// at its port.
func startLeases(t *testing.T, n *nightly) (restart func() error) {
	t.Helper()
	dir := t.TempDir()
	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	at, stop, err := localnats.StartAt(dir, ports[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop() })
	n.lease = at + "/leases"
	return func() (err error) {
		stop()
		_, stop, err = localnats.StartAt(dir, ports[0])
		t.Log("the store of leases restarted")
		return err
	}
}
