package cassinktest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// MeasureEnv makes [Measure] measure if it is not empty.
const MeasureEnv = "EPOCHFENCE_MEASURE_COMMITS"

// measuredRounds limits the rounds of a size, and measuredFor their time once a quarter of them is done.
const (
	measuredRounds = 40
	measuredFor    = 15 * time.Second
)

// Measure compares transactions of 1, 16 and 64 messages, which change an item each, with Get and Swap
// of as many items by hand: one after the other, and all beside each other. It prints a row of a table
// for each size, with medians of rounds that alternate.
func Measure(t *testing.T, store string, create func(t testing.TB) castest.Rig) {
	if os.Getenv(MeasureEnv) == "" {
		t.Skip("measures transactions; set " + MeasureEnv)
	}
	rows := []string{
		"| store | messages | transaction | of a batch handler | one by one by hand | beside each other | transaction: one by one | batch: one by one | batch: beside |",
		"|---|---|---|---|---|---|---|---|---|",
	}
	w := newWorld(t, "app", create(t), 1)
	w.ctx = t.Context()
	at := w.owns()
	for _, size := range []int{1, 16, 64} {
		ways := []func() error{
			func() error { return w.commits(at, w.calls(at.Next, size)) },
			func() error { return w.commits(at, w.call(at.Next, size), size) },
			func() error { return w.byHand(size, 1) },
			func() error { return w.byHand(size, size) },
		}
		took := make([][]time.Duration, len(ways))
		start := time.Now()
		for round := range measuredRounds {
			if round > measuredRounds/4 && time.Since(start) > measuredFor {
				break
			}
			for i, way := range ways {
				began := time.Now()
				w.must(way())
				took[i] = append(took[i], time.Since(began))
			}
		}
		var m []float64
		for _, ds := range took {
			slices.Sort(ds)
			m = append(m, ds[len(ds)/2].Seconds()*1000)
		}
		rows = append(rows, fmt.Sprintf("| %s | %d | %.2f ms | %.2f ms | %.2f ms | %.2f ms | %.2f | %.2f | %.2f |",
			store, size, m[0], m[1], m[2], m[3], m[0]/m[2], m[1]/m[2], m[1]/m[3]))
	}
	t.Logf("\n%s", strings.Join(rows, "\n"))
}

// owns claims the partition.
func (w *world) owns() *epoch.Fence {
	at := epoch.Position{Mark: epoch.NoMark}
	origin := epoch.Origin{Partition: w.partition(0), Log: "log", Source: "source"}
	w.must(w.sink.Seed(w.ctx, []epoch.Start{{Origin: origin, Next: at, Earliest: at}}))
	seen, err := w.sink.Fence(w.ctx, origin.Partition)
	w.must(err)
	mine, err := w.sink.Claim(w.ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "a"}))
	w.must(err)
	return &mine
}

type call = func(ctx context.Context, tx *cassink.Tx) error

var body = strings.Repeat("x", 100)

func sets(guard.State) (guard.State, []byte, error) { return guard.Text(body), nil, nil }

func (w *world) calls(from epoch.Offset, size int) (calls []call) {
	for n := range size {
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error {
			_, err := tx.Update(ctx, w.message(from, n), w.item(n), sets)
			return err
		})
	}
	return calls
}

// call is a batch handler that loads its items first.
func (w *world) call(from epoch.Offset, size int) []call {
	return []call{func(ctx context.Context, tx *cassink.Tx) error {
		keys := make([]string, size)
		for n := range keys {
			keys[n] = w.item(n)
		}
		if err := tx.Load(ctx, keys...); err != nil {
			return err
		}
		for n, key := range keys {
			if _, err := tx.Update(ctx, w.message(from, n), key, sets); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (w *world) message(from epoch.Offset, n int) epoch.Message {
	return epoch.Message{Partition: w.partition(0), Offset: from + epoch.Offset(n), Mark: epoch.NoMark}
}

func (w *world) commits(at *epoch.Fence, calls []call, size ...int) error {
	count := len(calls)
	if len(size) > 0 {
		count = size[0]
	}
	a := epoch.Advance{Partition: at.Partition, Claim: at.Claim, From: at.Next, To: at.Next + epoch.Offset(count), Mark: epoch.NoMark}
	at.Next = a.To
	return w.sink.Commit(w.ctx, []epoch.Advance{a}, calls...)
}

// byHand replaces items without a sink.
func (w *world) byHand(size, sideBySide int) error {
	var all errgroup.Group
	all.SetLimit(sideBySide)
	for n := range size {
		all.Go(func() error {
			seen, err := w.store.Get(w.ctx, fmt.Sprint("hand/", n))
			if err == nil {
				_, err = w.store.Swap(w.ctx, seen, []byte(body), nil)
			}
			return err
		})
	}
	return all.Wait()
}
