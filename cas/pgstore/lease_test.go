package pgstore_test

import (
	"testing"

	"github.com/epochfence/epochfence/guard/guardtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

func TestLeases(t *testing.T) { leasetest.Run(t, rig) }

func TestItems(t *testing.T) { guardtest.Run(t, rig) }

func TestConsumers(t *testing.T) { cassinktest.Run(t, rig) }

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "PostgreSQL", rig) }

func TestLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "PostgreSQL",
		Number: "a sequence: it grows, also over deletions; a restored backup repeats it",
		Needs:  "`synchronous_commit`; a synchronous standby if it fails over",
	}, rig)
}
