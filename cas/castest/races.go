package castest

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"

	"github.com/epochfence/epochfence/cas"
)

const (
	races   = 150
	clients = 4
)

func oneWrites(w *world) {
	c := w.client()
	seen := c.creates("orders", "", "")
	w.race(func(int) cas.Item { return seen }, func(n int, c client) error {
		_, err := c.Swap(w.ctx, seen, fmt.Append(nil, n), nil)
		return err
	}, func() { seen = c.reads("orders", func(item cas.Item) bool { return item.Version != seen.Version }) })
}

func oneCreates(w *world) {
	var round int
	w.race(func(r int) cas.Item { round = r; return cas.Item{} }, func(n int, c client) error {
		_, err := c.Swap(w.ctx, cas.Item{Key: fmt.Sprint("orders/", round)}, fmt.Append(nil, n), nil)
		return err
	}, func() {})
}

func oneWritesOrDeletes(w *world) {
	c := w.client()
	var seen cas.Item
	w.race(func(round int) cas.Item {
		seen = c.creates(fmt.Sprint("orders/", round), "", "")
		return seen
	}, func(n int, c client) error {
		if n%2 == 0 {
			return c.Delete(w.ctx, seen)
		}
		_, err := c.Swap(w.ctx, seen, fmt.Append(nil, n), nil)
		return err
	}, func() {})
}

// race lets each client try something from the same item, in each round, of which one must succeed.
func (w *world) race(begin func(round int) cas.Item, try func(n int, c client) error, end func()) {
	w.Helper()
	all := make([]client, clients)
	for i := range all {
		all[i] = w.client()
	}
	for round := range cmp.Or(w.rig.Races, races) {
		begin(round)
		var won atomic.Int64
		w.atOnce(all, func(n int, c client) {
			switch err := try(n, c); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, cas.ErrConflict):
				w.Errorf("round %d: client %d: err = %v, want nil or %q", round, n, err, cas.ErrConflict)
			}
		})
		if won.Load() != 1 {
			w.Fatalf("round %d: %d of %d clients succeeded", round, won.Load(), clients)
		}
		end()
	}
}

func counter(w *world) {
	all := make([]client, clients)
	for i := range all {
		all[i] = w.client()
	}
	w.count(all)
}

// sharedStore counts with one store that several goroutines use.
func sharedStore(w *world) {
	c := w.client()
	w.count([]client{c, c, c, c})
}

// count increments a counter from each client.
func (w *world) count(all []client) {
	w.Helper()
	const each = 25
	w.atOnce(all, func(_ int, c client) {
		for done := 0; done < each; {
			seen, err := c.Get(w.ctx, "stock")
			if err != nil {
				w.Errorf("get: %v", err)
				return
			}
			n, _ := strconv.Atoi(string(seen.Value))
			runtime.Gosched() // the others come in between, also in memory
			switch _, err = c.Swap(w.ctx, seen, fmt.Append(nil, n+1), nil); {
			case err == nil:
				done++
			case !errors.Is(err, cas.ErrConflict):
				w.Errorf("swap: %v", err)
				return
			}
		}
	})
	want := fmt.Sprint(len(all) * each)
	w.client().reads("stock", func(item cas.Item) bool { return string(item.Value) == want })
}
