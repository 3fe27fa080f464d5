package rebuild

import (
	"os"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The pods are this test binary.
func TestMain(m *testing.M) {
	show.Enter(newNightly().Work)
	os.Exit(m.Run())
}

func short() *nightly {
	n := newNightly()
	n.every, n.ttl, n.parts = 2*time.Second, time.Second, 4
	return n
}

func TestTheFencedIndexIsExactAtEachMomentAndTheUsualOneIsAMixture(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes half a minute")
	}
	cs := showtest.Exact(t, short(), "-ticks", "4", "-freezes", "2", "-kills", "1")
	if a := cs[0].Side.(*column).audit; a.ticks < 4 || a.unnamed == 0 {
		t.Errorf("fenced: %+v; want an object of the pod that was frozen before its part, which was refused", a)
	}
	if n := cs[0].Crew.Outcomes(show.Stale); n < 2 {
		t.Errorf("%d steps of pods that were frozen were refused as stale, want one of each freeze", n)
	}
	if a := cs[1].Side.(*column).audit; a.mixtures == 0 {
		t.Errorf("baseline: %+v; no reader has found a mixture", a)
	}
}

func TestAnInterruptStopsEverythingAndLeavesNothing(t *testing.T) {
	showtest.Interrupted(t, newNightly(), "*-fenced.db", "parts")
}

func TestWrongFlagsAreSaidClearly(t *testing.T) {
	showtest.Refused(t, show.StatusUsage, func() show.Show { return New() }, map[string]string{
		"-ticks 0":           "-ticks is 0; want 1 to 10000",
		"-freezes -1":        "-freezes is -1; want 0 to 10000",
		"-kills x":           `invalid value "x"`,
		"-lease etcd://host": "-lease: want one of nats (a server in this process), nats://HOST:PORT/BUCKET, postgres://…",
		"now":                `unexpected argument "now"`,
	})
}
