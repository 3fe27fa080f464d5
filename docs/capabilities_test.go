package docs

import (
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// capabilities returns which interfaces a sink implements.
func capabilities[TX any](s epoch.Sink[TX]) map[string]bool {
	is := map[string]bool{}
	_, is["`epoch.Holding`"] = s.(epoch.Holding[TX])
	_, is["`epoch.Sharded`"] = s.(epoch.Sharded)
	_, is["`operate.Ledger`"] = s.(operate.Ledger[TX])
	return is
}

func TestTheTableOfCapabilitiesIsWhatTheSinksImplement(t *testing.T) {
	inFile := capabilities[*sqlsink.Tx](&sqlsink.Sink{})
	sinks := []map[string]bool{ // in the order of the columns
		capabilities[pgsink.Tx](&pgsink.Sink{}), capabilities[*pgsink.Queue](pgsink.Queued{}), inFile,
		capabilities[pgsink.Tx](&shardsink.Sink[pgsink.Tx]{}), capabilities[*memsink.Tx](&memsink.Sink{}),
		capabilities[*cassink.Tx](&cassink.Sink{}),
	}
	rows := tableRows(t, "docs/extend.md", "### What the sinks here implement")
	if len(rows) != len(inFile) {
		t.Errorf("the table has %d interfaces; want %d", len(rows), len(inFile))
	}
	for _, row := range rows {
		for i, is := range sinks {
			does, known := is[row[0]]
			if said := strings.HasPrefix(row[i+1], "yes"); !known || said != does {
				t.Errorf("%s, sink %d: the table says %q; the sink implements it: %t", row[0], i+1, row[i+1], does)
			}
		}
	}
}
