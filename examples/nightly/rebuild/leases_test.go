package rebuild

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/localnats"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/internal/show"
)

func TestAStoreOfOthersHasTheLeasesAndIsLeftAsItWas(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	for name, start := range map[string]func(t *testing.T) string{
		"nats": func(t *testing.T) string {
			url, stop, err := localnats.Start(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
			return url + "/leases"
		},
		"postgres": func(t *testing.T) string { return pgtest.Start(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			n := short()
			n.Ticks, n.Freezes, n.Kills, n.Naive, n.Lease = 2, 1, 0, false, start(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var out bytes.Buffer
			b := show.NewBoard(&out)
			cs, err := n.play(ctx, b)
			if err != nil {
				t.Fatal(err, out.String())
			}
			if status := conclude(b, cs); status != show.StatusExact {
				t.Errorf("status %d: %s", status, out.String())
			}
			store, err := find(n.stores, n.Lease)
			if err != nil {
				t.Fatal(err)
			}
			s, closer, err := store.Open(ctx, n.Lease)
			if err != nil {
				t.Fatal(err)
			}
			defer closer()
			for item, err := range s.List(ctx, "") {
				t.Errorf("%s is left, %v", item.Key, err)
			}
		})
	}
}
