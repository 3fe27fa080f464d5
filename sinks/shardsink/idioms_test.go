package shardsink_test

import (
	"testing"

	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// The idioms are about messages that share a transaction, so all partitions are in one shard,
// which is not the first.
func TestIdioms(t *testing.T) {
	sinktest.Idioms(t, sinktest.Idiomatic[*memsink.Tx]{
		Mode: "shardsink", Virtual: true,
		Database: func(t testing.TB) sinktest.Database[*memsink.Tx] {
			dbs := newDatabases(2)
			d := suiteOn(toThe(1), dbs)
			d.Operator = func(testing.TB) operate.Operator { return dbs[1].Operator() }
			d.DeadLetter = dbs[1].DeadLetter
			return d
		},
	})
}
