package castest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
)

func (c client) getAll(ctx context.Context, keys ...string) ([]cas.Item, error) {
	return c.Store.(cas.BatchGetter).GetAll(ctx, keys)
}

// readTogether reads more items than a request may have, some of which do not exist.
func readTogether(w *world) {
	const items = 450
	c := w.client()
	var keys []string
	want := map[string]cas.Item{}
	for n := range items {
		key := fmt.Sprintf("orders/%d", n*7%items)
		keys = append(keys, key)
		switch want[key] = (cas.Item{Key: key}); n % 5 {
		case 0: // absent
		case 1:
			w.NoError(c.Delete(w.ctx, c.put(key)))
			want[key] = c.reads(key, func(item cas.Item) bool { return !item.Live })
		default:
			want[key] = c.put(key)
		}
	}
	c.put("orders") // a part of the others' keys
	keys = append(keys, slices.Collect(kindsOfKeys)...)
	for key := range kindsOfKeys {
		want[key] = c.put(key)
	}
	for {
		found, err := c.getAll(w.ctx, keys...)
		w.Mustf(err == nil && len(found) == len(keys), "%d keys: %d items, %v", len(keys), len(found), err)
		late := 0
		for i, key := range keys {
			if found[i].Key == key && found[i].Version != want[key].Version {
				late++
			}
		}
		if late > 0 && w.pause() == nil { // a store may lag
			continue
		}
		for i, key := range keys {
			w.same(found[i], want[key])
		}
		break
	}
	if found, err := c.getAll(w.ctx, keys[2]); err != nil || len(found) != 1 || found[0].Key != keys[2] {
		w.Errorf("one key: %v, %v", found, err)
	}
	if found, err := c.getAll(w.ctx); err != nil || len(found) != 0 {
		w.Errorf("no key: %v, %v", found, err)
	}
	found, err := c.getAll(w.ctx, keys[2], keys[3])
	w.NoError(err)
	c.writes(found[0], "replaced as read", "")
	c.refused(found[0], "a read of several")
}

func (c client) put(key string) cas.Item {
	c.w.Helper()
	item, err := c.Swap(c.w.ctx, cas.Item{Key: key}, []byte("value of "+key), []byte("note of "+key))
	c.w.NoErrorf(err, "swap %q", key)
	return item
}

func kindsOfKeys(yield func(string) bool) {
	for _, key := range []string{" ", "a b", "ü/ö", "a//b", `quo"te`, "{brace}", "per%cent", "new\nline"} {
		if !yield(key) {
			return
		}
	}
}

func togetherOfOneWrite(w *world) {
	w.readsWhileWritten(func(c client) (cas.Item, error) {
		items, err := c.getAll(w.ctx, "other", "orders")
		if err != nil || len(items) != 2 {
			return cas.Item{}, fmt.Errorf("%d items, %w", len(items), err)
		}
		return items[1], nil
	})
}

func failsTogether(w *world) {
	c := w.client()
	_, err := c.getAll(w.ctx, "orders", "")
	w.Wantf(errors.Is(err, cas.ErrKey), "an empty key: %v", err)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := c.getAll(ctx, "orders", "payments"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "orders") {
		w.Errorf("a context that has ended: %v", err)
	}
}

// writesTogether writes more items than a request may have, some of which must be refused.
func writesTogether(w *world) {
	c := w.client()
	var writes []cas.Write
	var want []error
	add := func(seen cas.Item, err error) {
		writes = append(writes, cas.Write{Seen: seen, Value: fmt.Append(nil, "value ", len(want)), Note: fmt.Append(nil, "note ", len(want))})
		want = append(want, err)
	}
	for n := range 300 {
		key := fmt.Sprint("orders/", n*7%300)
		switch n % 4 {
		case 0:
			add(cas.Item{Key: key}, nil)
		case 1:
			add(c.put(key), nil)
		case 2:
			c.put(key)
			add(cas.Item{Key: key}, cas.ErrConflict)
		case 3:
			before := c.put(key)
			add(before, cas.ErrConflict)
			c.writes(before, "newer", "")
		}
	}
	for key := range kindsOfKeys {
		add(cas.Item{Key: key}, nil)
	}
	add(cas.Item{}, cas.ErrKey)
	results := cas.SwapAll(w.ctx, c.Store, writes)
	for i, err := range want {
		r, key := results[i], writes[i].Seen.Key // of a store that forgets some, this panics
		if !errors.Is(r.Err, err) || (r.Err == nil) != (err == nil) || err != nil && !strings.Contains(r.Err.Error(), fmt.Sprintf("%q", key)) {
			w.Fatalf("write %d, of %q: err = %v, want %v", i, key, r.Err, err)
		}
		if err == nil {
			w.same(r.Item, cas.Item{Key: key, Live: true, Value: writes[i].Value, Note: writes[i].Note, Version: r.Item.Version, Number: r.Item.Number})
			c.is(r.Item)
		} else if key != "" {
			c.reads(key, func(now cas.Item) bool { return now.Live && string(now.Value) != string(writes[i].Value) })
		}
	}
	twice := cas.SwapAll(w.ctx, c.Store, []cas.Write{{Seen: results[0].Item}, {Seen: results[0].Item}})
	if one := []bool{twice[0].Err == nil, twice[1].Err == nil}; one[0] == one[1] || !errors.Is(errors.Join(twice[0].Err, twice[1].Err), cas.ErrConflict) {
		w.Errorf("two writes of one key: %v, %v", twice[0].Err, twice[1].Err)
	}
	ctx, cancel := cancelled(w)
	defer cancel()
	for _, r := range cas.SwapAll(ctx, c.Store, []cas.Write{{Seen: cas.Item{Key: "a"}}, {Seen: cas.Item{Key: "b"}}}) {
		w.Wantf(errors.Is(r.Err, context.Canceled) && !errors.Is(r.Err, cas.ErrConflict), "a context that has ended: %v", r.Err)
	}
}

// oneOfEach has clients write the same items together, in two orders, and looks at one of them.
func oneOfEach(w *world) {
	c := w.client()
	var writes []cas.Write
	w.race(func(round int) cas.Item {
		writes = []cas.Write{{Seen: c.put(fmt.Sprint("a/", round))}, {Seen: cas.Item{Key: fmt.Sprint("b/", round)}}, {Seen: c.put(fmt.Sprint("c/", round))}}
		return cas.Item{}
	}, func(n int, c client) error {
		mine, at := slices.Clone(writes), len(writes[0].Seen.Key)%3 // another one after ten rounds and after a hundred
		if n%2 == 0 {
			slices.Reverse(mine)
			at = 2 - at
		}
		results := cas.SwapAll(w.ctx, c.Store, mine)
		for _, r := range results {
			if r.Err != nil && !errors.Is(r.Err, cas.ErrConflict) {
				return r.Err
			}
		}
		return results[at].Err
	}, func() {})
}

// lostTogether is lostAnswer for writes that are made together.
func lostTogether(w *world) {
	c, p := w.behind()
	witness := w.client()
	landed := 0
	for n := range losses {
		var writes []cas.Write
		for i := range 5 {
			writes = append(writes, cas.Write{Seen: cas.Item{Key: fmt.Sprint("orders/", n, "/", i)}})
		}
		for _, value := range []string{"0", "x"} { // clients prepare what they send the first time
			for i, r := range cas.SwapAll(w.ctx, c.Store, writes) {
				writes[i] = cas.Write{Seen: r.Item, Value: []byte(value)}
			}
		}
		p.LoseAnswer()
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		results := cas.SwapAll(ctx, c.Store, writes)
		cancel()
		p.Pass()
		for i, r := range results {
			switch applied := string(w.settled(witness, writes[i].Seen).Value) == "x"; {
			case errors.Is(r.Err, cas.ErrConflict), r.Err == nil && !applied:
				w.Fatalf("nobody else has written it; it landed: %v; err = %v", applied, r.Err)
			case r.Err != nil && applied:
				landed++
			}
		}
		c.answers()
	}
	w.Wantf(landed != 0, "no write has landed whose answer was lost")
}

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
		w.Mustf(won.Load() == 1, "round %d: %d of %d clients succeeded", round, won.Load(), clients)
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
