package leasetest_test

import (
	"flag"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/lease/leasetest"
)

func TestLeasesOnAStoreThatReportsChanges(t *testing.T) {
	leasetest.Simulate(t, func() cas.Store { return memstore.New() })
}

// silent is a store that is asked again and again.
type silent struct{ cas.Store }

func TestLeasesOnAStoreThatDoesNotReportChanges(t *testing.T) {
	leasetest.Simulate(t, func() cas.Store { return silent{memstore.New()} })
}

var explored = flag.Int("explore", 40, "how many runs of random faults")

func TestRandomFaultsNeverGiveALeaseToTwo(t *testing.T) {
	leasetest.Explore(t, *explored, func() cas.Store { return memstore.New() })
}

func TestRandomFaultsNeverGiveALeaseToTwoOnAStoreThatDoesNotReportChanges(t *testing.T) {
	leasetest.Explore(t, *explored, func() cas.Store { return silent{memstore.New()} })
}
