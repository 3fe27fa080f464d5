package castest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
			if err := c.Delete(w.ctx, c.put(key)); err != nil {
				w.Fatal(err)
			}
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
		if err != nil || len(found) != len(keys) {
			w.Fatalf("%d keys: %d items, %v", len(keys), len(found), err)
		}
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
	if err != nil {
		w.Fatal(err)
	}
	c.writes(found[0], "replaced as read", "")
	c.refused(found[0], "a read of several")
}

func (c client) put(key string) cas.Item {
	c.w.Helper()
	item, err := c.Swap(c.w.ctx, cas.Item{Key: key}, []byte("value of "+key), []byte("note of "+key))
	if err != nil {
		c.w.Fatalf("swap %q: %v", key, err)
	}
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
	if _, err := c.getAll(w.ctx, "orders", ""); !errors.Is(err, cas.ErrKey) {
		w.Errorf("an empty key: %v", err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := c.getAll(ctx, "orders", "payments"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "orders") {
		w.Errorf("a context that has ended: %v", err)
	}
}

// written is a write of a history, and what it must do.
type written struct {
	cas.Write
	want error
}

// writesTogether writes more items than a request may have, some of which must be refused.
func writesTogether(w *world) {
	const items = 300
	c := w.client()
	var all []written
	add := func(seen cas.Item, want error) {
		all = append(all, written{cas.Write{Seen: seen, Value: fmt.Append(nil, "value ", len(all)), Note: fmt.Append(nil, "note ", len(all))}, want})
	}
	for n := range items {
		key := fmt.Sprintf("orders/%d", n*7%items)
		switch n % 6 {
		case 0, 1:
			add(cas.Item{Key: key}, nil)
		case 2:
			add(c.put(key), nil)
		case 3:
			c.put(key)
			add(cas.Item{Key: key}, cas.ErrConflict)
		case 4:
			before := c.put(key)
			c.writes(before, "newer", "")
			add(before, cas.ErrConflict)
		case 5:
			add(c.deletes(c.put(key)), nil)
		}
	}
	for key := range kindsOfKeys {
		add(cas.Item{Key: key}, nil)
	}
	add(cas.Item{}, cas.ErrKey)
	if f := c.facts(); f.MaxValue > 0 {
		add(cas.Item{Key: "large"}, cas.ErrTooLarge)
		all[len(all)-1].Value = make([]byte, f.MaxValue+1)
	}
	add(all[0].Seen, cas.ErrConflict) // twice
	add(cas.Item{Key: "last"}, nil)

	results := cas.SwapAll(w.ctx, c.Store, writesOf(all))
	if len(results) != len(all) {
		w.Fatalf("%d writes have %d results", len(all), len(results))
	}
	for i, r := range results {
		key := all[i].Seen.Key
		if !errors.Is(r.Err, all[i].want) || (r.Err == nil) != (all[i].want == nil) {
			w.Fatalf("write %d, of %q: err = %v, want %v", i, key, r.Err, all[i].want)
		}
		if r.Err != nil && !strings.Contains(r.Err.Error(), fmt.Sprintf("%q", key)) {
			w.Errorf("the error of write %d does not name %q: %v", i, key, r.Err)
		}
		if r.Err == nil {
			w.same(r.Item, cas.Item{Key: key, Live: true, Value: all[i].Value, Note: all[i].Note, Version: r.Item.Version, Number: r.Item.Number})
			c.is(r.Item)
		} else if key != "" && key != all[0].Seen.Key && string(c.reads(key, func(cas.Item) bool { return true }).Value) == string(all[i].Value) {
			w.Errorf("write %d, of %q, was refused, and is there", i, key)
		}
	}
	again := cas.SwapAll(w.ctx, c.Store, []cas.Write{{Seen: results[0].Item, Value: []byte("as it was returned")}, {Seen: results[1].Item}})
	for _, r := range again {
		if r.Err != nil {
			w.Errorf("an item that was written together with others: %v", r.Err)
		}
	}
	if none := cas.SwapAll(w.ctx, c.Store, nil); len(none) != 0 {
		w.Errorf("no write has %d results", len(none))
	}
}

func writesOf(all []written) []cas.Write {
	writes := make([]cas.Write, len(all))
	for i, one := range all {
		writes[i] = one.Write
	}
	return writes
}

// oneOfEach has clients write the same items together, each in another order.
func oneOfEach(w *world) {
	const items = 8
	seen := make([]cas.Item, items)
	all := make([]client, clients)
	for i := range all {
		all[i] = w.client()
	}
	for round := range max(1, cmp.Or(w.rig.Races, races)/5) {
		for n := range seen {
			seen[n] = cas.Item{Key: fmt.Sprintf("orders/%d/%d", round, n)}
			if n%2 == 0 {
				seen[n] = all[0].put(seen[n].Key)
			}
		}
		var won [items]atomic.Int64
		w.atOnce(all, func(n int, c client) {
			writes := make([]cas.Write, items)
			for i := range writes {
				writes[i] = cas.Write{Seen: seen[(i*(2*n+1)+n)%items], Value: fmt.Append(nil, n)}
			}
			for i, r := range cas.SwapAll(w.ctx, c.Store, writes) {
				switch {
				case r.Err == nil:
					won[(i*(2*n+1)+n)%items].Add(1)
				case !errors.Is(r.Err, cas.ErrConflict):
					w.Errorf("round %d: client %d: err = %v, want nil or %q", round, n, r.Err, cas.ErrConflict)
				}
			}
		})
		for n := range won {
			if won[n].Load() != 1 {
				w.Fatalf("round %d: %d of %d clients have replaced item %d", round, won[n].Load(), clients, n)
			}
		}
	}
}

// lostTogether loses requests and answers of writes that are made together: those that landed must not
// conflict, and those that succeeded must be there.
func lostTogether(w *world) {
	const items = 5
	c, p := w.behind()
	witness := w.client()
	seen := make([]cas.Item, items)
	for n := range seen {
		seen[n] = c.creates(fmt.Sprint("orders/", n), "0", "")
	}
	landed := 0
	for n := range losses {
		value := []byte{byte('a' + n)}
		writes := make([]cas.Write, items)
		for i := range seen {
			writes[i] = cas.Write{Seen: seen[i], Value: []byte("0")}
		}
		for i, r := range cas.SwapAll(w.ctx, c.Store, writes) { // clients prepare what they send the first time
			if r.Err != nil {
				w.Fatal(r.Err)
			}
			writes[i] = cas.Write{Seen: r.Item, Value: value}
		}
		if n%2 == 0 {
			p.LoseAnswer()
		} else {
			p.LoseRequest()
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		results := cas.SwapAll(ctx, c.Store, writes)
		cancel()
		p.Pass()
		for i, r := range results {
			seen[i] = w.settled(witness, writes[i].Seen)
			switch applied := string(seen[i].Value) == string(value); {
			case errors.Is(r.Err, cas.ErrConflict):
				w.Fatalf("a write conflicts that nothing has conflicted with; it landed: %v; err = %v", applied, r.Err)
			case r.Err == nil && !applied:
				w.Fatalf("a write succeeded, and the item is\n%s", show(seen[i]))
			case r.Err != nil && applied:
				landed++
			}
		}
		c.answers()
	}
	if p.Struck() == 0 || landed == 0 {
		w.Fatalf("the proxy has lost %d connections, and %d writes have landed whose answers were lost", p.Struck(), landed)
	}
}

func endsTogether(w *world) {
	c := w.client()
	ctx, cancel := cancelled(w)
	defer cancel()
	for _, r := range cas.SwapAll(ctx, c.Store, []cas.Write{{Seen: cas.Item{Key: "orders"}}, {Seen: cas.Item{Key: "payments"}}}) {
		if !errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, cas.ErrConflict) {
			w.Errorf("a context that has ended: %v", r.Err)
		}
	}
}
