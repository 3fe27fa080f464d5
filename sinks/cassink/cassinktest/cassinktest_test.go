package cassinktest_test

import (
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

func rig(testing.TB) castest.Rig {
	s := memstore.New()
	return castest.Rig{Open: func(testing.TB, func(string) string) cas.Store { return s }}
}

func TestConsumersInMemory(t *testing.T) { cassinktest.Run(t, rig) }

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "memory", rig) }
