package shardsink_test

import (
	"context"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

type route = func(p epoch.Partition, shards int) int

// byGroup keeps what shares a transaction in the histories of the suite in one shard.
func byGroup(p epoch.Partition, shards int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Group))
	return int(h.Sum32()) & 0xff % shards
}

func toThe(shard int) route { return func(epoch.Partition, int) int { return shard } }

func newSink(t testing.TB, r route, dbs ...*memsink.Sink) *shardsink.Sink[*memsink.Tx] {
	t.Helper()
	var shards []epoch.Sink[*memsink.Tx]
	for _, db := range dbs {
		shards = append(shards, db)
	}
	s, err := shardsink.New(r, shards...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newDatabases(n int) []*memsink.Sink {
	dbs := make([]*memsink.Sink, n)
	for i := range dbs {
		dbs[i] = memsink.New()
	}
	return dbs
}

// suite plays on several databases as if they were one.
func suite(r route, shards int) func(testing.TB) sinktest.Database[*memsink.Tx] {
	return func(testing.TB) sinktest.Database[*memsink.Tx] { return suiteOn(r, newDatabases(shards)) }
}

func suiteOn(r route, dbs []*memsink.Sink) sinktest.Database[*memsink.Tx] {
	return sinktest.Database[*memsink.Tx]{
		Open: func(t testing.TB) epoch.Sink[*memsink.Tx] {
			var process []*memsink.Sink
			for _, db := range dbs {
				process = append(process, db.Open())
			}
			return newSink(t, r, process...)
		},
		Append: func(_ context.Context, tx *memsink.Tx, list, value string) error {
			tx.Append(list, value)
			return nil
		},
		List: func(_ context.Context, list string) (all []string, err error) {
			for _, db := range dbs {
				all = append(all, db.List(list)...)
			}
			return all, nil
		},
	}
}

// Histories that advance orders/0 and orders/1 in one transaction, which is refused
// where these are in two shards. They are played where they are in one.
var spanning = []string{
	"poison message in the middle",
	"several partitions commit together",
	"transactions over the same partitions in opposite orders do not deadlock",
	"frozen with two partitions in one transaction",
	"random histories: every answer and every effect is as epoch.Fences says",
	"many processes at a time",
}

func unlessSpanning(create func(testing.TB) sinktest.Database[*memsink.Tx]) func(testing.TB) sinktest.Database[*memsink.Tx] {
	return func(t testing.TB) sinktest.Database[*memsink.Tx] {
		if slices.ContainsFunc(spanning, func(h string) bool { return strings.Contains(t.Name(), strings.ReplaceAll(h, " ", "_")) }) {
			t.Skip("its transactions span shards")
		}
		return create(t)
	}
}

func TestSuite(t *testing.T) {
	for name, create := range map[string]func(testing.TB) sinktest.Database[*memsink.Tx]{
		"one shard":        suite(shardsink.ByNumber, 1),
		"all in the first": suite(toThe(0), 3),
		"all in the last":  suite(toThe(2), 3),
		"by group":         suite(byGroup, 2),
		"by number":        unlessSpanning(suite(shardsink.ByNumber, 2)),
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, create)
			sinktest.RunUnblocked(t, create)
		})
	}
}

// atHome operates each partition where its fence is.
type atHome struct {
	operate.Operator
	route route
	dbs   []*memsink.Sink
}

func (h atHome) of(p epoch.Partition) operate.Operator {
	return h.dbs[h.route(p, len(h.dbs))].Operator()
}

func (h atHome) Partition(ctx context.Context, p epoch.Partition) (operate.Partition, error) {
	return h.of(p).Partition(ctx, p)
}

func (h atHome) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	return h.of(a.Partition).Act(ctx, a)
}

func (h atHome) History(ctx context.Context, q operate.HistoryQuery) ([]operate.Decision, error) {
	if q.Partition == nil {
		return h.Operator.History(ctx, q)
	}
	return h.of(*q.Partition).History(ctx, q)
}

func TestPeopleOperateThePartitionsOfOneShard(t *testing.T) {
	for name, c := range map[string]struct {
		route  route
		shards int
	}{"one shard": {shardsink.ByNumber, 1}, "all in the last": {toThe(2), 3}} {
		t.Run(name, func(t *testing.T) {
			sinktest.RunOperated(t, func(t testing.TB) sinktest.Database[*memsink.Tx] {
				dbs := newDatabases(c.shards)
				d := suiteOn(c.route, dbs)
				home := dbs[c.shards-1]
				d.Operator = func(testing.TB) operate.Operator { return atHome{home.Operator(), c.route, dbs} }
				d.DeadLetter = home.DeadLetter
				return d
			})
		})
	}
}
