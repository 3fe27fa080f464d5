package castest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
)

const (
	brief = time.Second     // the time that items are written for
	later = 3 * time.Second // how much longer a history waits for them to go

	year = 365 * 24 * time.Hour
)

// as returns the store as one that has more methods.
func as[T cas.Store](c client) T {
	c.w.Helper()
	more, ok := c.Store.(T)
	c.w.Mustf(ok, "the store is no %T", new(T))
	return more
}

// writesFor replaces seen for a time, which must succeed.
func (c client) writesFor(seen cas.Item, value string, ttl time.Duration) cas.Item {
	c.w.Helper()
	item, err := as[cas.Expirer](c).SwapFor(c.w.ctx, seen, []byte(value), ttl)
	c.w.NoErrorf(err, "swap for %v", ttl)
	c.w.Mustf(item.Version != "" && item.Version != seen.Version, "version %q follows %q", item.Version, seen.Version)
	c.w.same(item, cas.Item{Key: seen.Key, Live: true, Value: []byte(value), Version: item.Version, Number: item.Number})
	return item
}

// goesInTime waits for an item to go. A store may keep it.
func goesInTime(w *world) {
	c, other := w.client(), w.client()
	var v *watching
	if _, ok := other.Store.(cas.Watcher); ok {
		v = other.watches("orders/")
		v.begins()
	}
	began := time.Now()
	item := c.writesFor(cas.Item{Key: "orders/1"}, "x", brief)
	gone := item
	for gone.Live && time.Since(began) < brief+later {
		if w.pause() != nil {
			break
		}
		var err error
		if gone, err = other.Get(w.ctx, item.Key); err != nil {
			w.Fatalf("get: %v", err)
		}
		if took := time.Since(began); !gone.Live && gone.Version == item.Version || !gone.Live && took < brief {
			w.Fatalf("%v after an item was written for %v, it is\n%s", took, brief, show(gone))
		}
	}
	if gone.Live {
		w.same(gone, item)
		w.Logf("the item is still there %v after its time", later)
		return
	}
	c.refused(item, "an item whose time is over")
	w.eventually(func() string { return difference(other.lists("orders/"), nil) })
	if v != nil {
		w.NoErrorf(v.shows(map[string]cas.Item{item.Key: item}, gone), "a watch")
	}
	c.is(c.writesFor(gone, "again", time.Hour))
}

func staysIfReplaced(w *world) {
	c := w.client()
	swap := func(seen cas.Item) (cas.Item, error) { return c.Swap(w.ctx, seen, []byte("y"), []byte("note")) }
	swapForLong := func(seen cas.Item) (cas.Item, error) {
		return as[cas.Expirer](c).SwapFor(w.ctx, seen, []byte("y"), time.Hour)
	}
	stay := []cas.Item{
		c.replacesInTime("orders/1/", swap),
		c.replacesInTime("orders/2/", swapForLong),
		c.replacesInTime("orders/3/", func(seen cas.Item) (cas.Item, error) {
			if err := c.Delete(w.ctx, seen); err != nil {
				return seen, err
			}
			return swap(c.reads(seen.Key, func(item cas.Item) bool { return !item.Live }))
		}),
		c.writesFor(c.creates("orders/4", "x", "note"), "y", time.Hour),
		c.writesFor(cas.Item{Key: "orders/5"}, "x", 250*year),
		c.writesFor(cas.Item{Key: "orders/6"}, "x", math.MaxInt64),
	}
	select {
	case <-time.After(2 * brief):
	case <-w.ctx.Done():
	}
	for _, item := range stay {
		c.is(item)
	}
}

// replacesInTime replaces an item that is there for a brief time. It tries again with another key if
// this process was too slow.
func (c client) replacesInTime(prefix string, replace func(seen cas.Item) (cas.Item, error)) cas.Item {
	c.w.Helper()
	for n := 0; ; n++ {
		began := time.Now()
		item, err := replace(c.writesFor(cas.Item{Key: fmt.Sprint(prefix, n)}, "x", brief))
		if err == nil {
			return item
		}
		took := time.Since(began)
		c.w.Mustf(took >= brief, "an item for %v is not replaced after %v: %v", brief, took, err)
	}
}

func comparedForATime(w *world) {
	c, other := w.client(), w.client()
	e, facts := as[cas.Expirer](c), c.facts()
	first := c.creates("orders", "1", "")
	second := other.writesFor(first, "2", time.Hour)
	other.is(second)
	for what, seen := range map[string]cas.Item{"an item that has changed": first, "absence, of an item that is there": {Key: "orders"}} {
		_, err := e.SwapFor(w.ctx, seen, []byte("refused"), time.Hour)
		w.conflicts(err, "swap for a time from "+what)
		w.Wantf(err == nil || strings.Contains(err.Error(), `"orders"`), "an error does not name the key: %v", err)
	}
	c.refused(first, "an item that was replaced for a time")
	if _, err := e.SwapFor(w.ctx, cas.Item{}, nil, time.Hour); !errors.Is(err, cas.ErrKey) {
		w.Errorf("an empty key: err = %v, want %q", err, cas.ErrKey)
	}
	if facts.MaxValue > 0 {
		_, err := e.SwapFor(w.ctx, second, make([]byte, facts.MaxValue+1), time.Hour)
		w.Wantf(errors.Is(err, cas.ErrTooLarge), "a value of %d bytes: err = %v, want %q", facts.MaxValue+1, err, cas.ErrTooLarge)
	}
	ctx, cancel := cancelled(w)
	defer cancel()
	w.endsWith(context.Canceled, func() error { _, err := e.SwapFor(ctx, second, nil, time.Hour); return err }, "swap for a time")
	other.is(second)
	for n, ttl := range []time.Duration{1, time.Millisecond, 1500 * time.Millisecond} {
		c.writesFor(cas.Item{Key: fmt.Sprint("orders/brief/", n)}, "x", ttl)
	}
}
