package castest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
