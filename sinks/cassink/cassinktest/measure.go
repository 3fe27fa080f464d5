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
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// MeasureEnv makes [Measure] measure if it is not empty.
const MeasureEnv = "EPOCHFENCE_MEASURE_COMMITS"

// measuredRounds limits the rounds of a size, and measuredFor their time once a quarter of them is done.
const (
	measuredRounds = 40
	measuredFor    = 15 * time.Second
)

// Measure compares transactions of 1, 16 and 64 messages, each of which changes an item, with the same
// changes by hand in three ways: one after the other; one after the other, where each message also writes
// a dedupe key; and all at once. It does so with one partition, and with eight at a time. It prints a row
// of a table for each, with medians of rounds that alternate.
func Measure(t *testing.T, store string, create func(t testing.TB) castest.Rig) {
	if os.Getenv(MeasureEnv) == "" {
		t.Skip("measures transactions; set " + MeasureEnv)
	}
	rows := []string{
		"| store | partitions | messages | transaction | of a batch handler | by hand | with a dedupe key | beside each other | transaction: by hand | batch: by hand | batch: dedupe key | batch: beside |",
		"|---|---|---|---|---|---|---|---|---|---|---|---|",
	}
	const most = 8
	w := newWorld(t, "app", create(t), most)
	w.ctx = t.Context()
	var all []*owned
	for n := range int32(most) {
		all = append(all, w.owns(n))
	}
	for _, partitions := range []int{1, most} {
		for _, size := range []int{1, 16, 64} {
			m := w.medians(all[:partitions], []func(o *owned) error{
				func(o *owned) error { return o.commits(o.calls(size), size) },
				func(o *owned) error { return o.commits(o.call(size), size) },
				func(o *owned) error { return o.byHand(size, 1) },
				func(o *owned) error { return o.deduplicates(size) },
				func(o *owned) error { return o.byHand(size, size) },
			})
			rows = append(rows, fmt.Sprintf("| %s | %d | %d | %.2f ms | %.2f ms | %.2f ms | %.2f ms | %.2f ms | %.2f | %.2f | %.2f | %.2f |",
				store, partitions, size, m[0], m[1], m[2], m[3], m[4], m[0]/m[2], m[1]/m[2], m[1]/m[3], m[1]/m[4]))
		}
	}
	t.Logf("\n%s", strings.Join(rows, "\n"))
}

// medians returns how many milliseconds each way takes with all partitions at a time.
func (w *world) medians(all []*owned, ways []func(o *owned) error) (ms []float64) {
	took := make([][]time.Duration, len(ways))
	start := time.Now()
	for round := range measuredRounds {
		if round > measuredRounds/4 && time.Since(start) > measuredFor {
			break
		}
		for i, way := range ways {
			began := time.Now()
			var each errgroup.Group
			for _, o := range all {
				each.Go(func() error { return way(o) })
			}
			w.NoError(each.Wait())
			took[i] = append(took[i], time.Since(began))
		}
	}
	for _, ds := range took {
		slices.Sort(ds)
		ms = append(ms, ds[len(ds)/2].Seconds()*1000)
	}
	return ms
}

// owned is a partition with a claim.
type owned struct {
	*world
	fence epoch.Fence
	left  int // dedupe keys
}

func (w *world) owns(partition int32) *owned {
	at := epoch.Position{Mark: epoch.NoMark}
	origin := epoch.Origin{Partition: w.partition(partition), Log: "log", Source: "source"}
	w.NoError(w.sink.Seed(w.ctx, []epoch.Start{{Origin: origin, Next: at, Earliest: at}}))
	seen, err := epoch.FenceOf(w.ctx, w.sink, origin.Partition)
	w.NoError(err)
	mine, err := w.sink.Claim(w.ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "a"}))
	w.NoError(err)
	return &owned{world: w, fence: mine}
}

// key is the item of the n-th message of a transaction.
func (o *owned) key(n int) string { return fmt.Sprintf("%s/%d", o.item(n), o.fence.Partition.Number) }

type call = func(ctx context.Context, tx *cassink.Tx) error

var body = strings.Repeat("x", 100)

func sets(guard.State) (guard.State, []byte, error) { return guard.Text(body), nil, nil }

func (o *owned) calls(size int) (calls []call) {
	for n := range size {
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error {
			_, err := tx.Update(ctx, o.message(n), o.key(n), sets)
			return err
		})
	}
	return calls
}

// call is a batch handler that loads its items first.
func (o *owned) call(size int) []call {
	return []call{func(ctx context.Context, tx *cassink.Tx) error {
		keys := make([]string, size)
		for n := range keys {
			keys[n] = o.key(n)
		}
		if err := tx.Load(ctx, keys...); err != nil {
			return err
		}
		for n, key := range keys {
			if _, err := tx.Update(ctx, o.message(n), key, sets); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (o *owned) message(n int) epoch.Message {
	return epoch.Message{Partition: o.fence.Partition, Offset: o.fence.Next + epoch.Offset(n), Mark: epoch.NoMark}
}

func (o *owned) commits(calls []call, size int) error {
	f := &o.fence
	a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + epoch.Offset(size), Mark: epoch.NoMark}
	err := o.sink.Commit(o.ctx, []epoch.Advance{a}, epoch.TxOptions{}, calls...)
	f.Next = a.To
	return err
}

// byHand replaces items without a sink.
func (o *owned) byHand(size, sideBySide int) error {
	var all errgroup.Group
	all.SetLimit(sideBySide)
	for n := range size {
		all.Go(func() error { return o.replaces("hand/" + o.key(n)) })
	}
	return all.Wait()
}

func (o *owned) replaces(key string) error {
	seen, err := o.store.Get(o.ctx, key)
	if err == nil {
		_, err = o.store.Swap(o.ctx, seen, []byte(body), nil)
	}
	return err
}

// deduplicates replaces items one after the other, each unless there is a key for its message, which it
// then writes.
func (o *owned) deduplicates(size int) error {
	for n := range size {
		o.left++
		seen, err := o.store.Get(o.ctx, fmt.Sprintf("done/%d/%d", o.fence.Partition.Number, o.left))
		if err == nil && !seen.Live {
			err = o.replaces("hand/" + o.key(n))
		}
		if err == nil {
			_, err = o.store.Swap(o.ctx, seen, []byte(body), nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
