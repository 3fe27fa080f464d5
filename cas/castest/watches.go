package castest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// watching is a watch that is read in a goroutine, one element whenever the history asks for one.
type watching struct {
	w        *world
	prefix   string
	elements chan element // closed when the watch has ended
	cancel   context.CancelFunc
}

type element struct {
	item cas.Item
	err  error
}

func (c client) watches(prefix string) *watching {
	c.w.Helper()
	ctx, cancel := context.WithCancel(c.w.ctx)
	c.w.Cleanup(cancel)
	v, watcher := &watching{c.w, prefix, make(chan element), cancel}, as[cas.Watcher](c)
	go func() {
		defer close(v.elements)
		for item, err := range watcher.Watch(ctx, prefix) {
			select {
			case v.elements <- element{item, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return v
}

var errWithoutError = errors.New("it has ended without an error")

// reads returns the next element.
func (v *watching) reads() (cas.Item, error) {
	v.w.Helper()
	select {
	case e, ok := <-v.elements:
		if !ok {
			return cas.Item{}, errWithoutError
		}
		v.checks(e.item)
		return e.item, e.err
	case <-v.w.ctx.Done():
		return cas.Item{}, errors.New("it has no more elements")
	}
}

func (v *watching) checks(item cas.Item) {
	v.w.Helper()
	v.w.Mustf(item.Key == "" || strings.HasPrefix(item.Key, v.prefix), "a watch of %q has %q", v.prefix, item.Key)
	if len(item.Note) > 0 || !item.Live && len(item.Value) > 0 {
		v.w.Fatalf("a watch has content that it must not have:\n%s", show(item))
	}
}

// next is reads for a watch that must not end.
func (v *watching) next() cas.Item {
	v.w.Helper()
	item, err := v.reads()
	v.w.NoErrorf(err, "a watch of %q", v.prefix)
	return item
}

// begins reads what is there when the watch begins.
func (v *watching) begins() map[string]cas.Item {
	v.w.Helper()
	items := map[string]cas.Item{}
	for {
		item := v.next()
		if item.Key == "" {
			return items
		}
		v.w.Mustf(item.Live, "a watch begins with an item that is not live:\n%s", show(item))
		items[item.Key] = item
	}
}

// has reads the next change, which must have led to want.
func (v *watching) has(want cas.Item) cas.Item {
	v.w.Helper()
	got := v.next()
	v.w.same(got, withoutNote(want))
	return got
}

func withoutNote(item cas.Item) cas.Item {
	item.Note = nil
	return item
}

func watched(w *world) {
	c, other := w.client(), w.client()
	w.Mustf(c.facts().Numbers, "the items of a cas.Watcher have numbers (Facts.Numbers)")
	there := map[string]cas.Item{}
	for _, key := range []string{"orders/1", "orders/1/x", "orders/12"} {
		there[key] = c.creates(key, "value of "+key, "note")
	}
	c.deletes(c.creates("orders/13", "x", ""))
	var beside []cas.Item
	for _, key := range []string{"orders", "orders/", "orders/2", "Orders/1", "payments/1"} {
		beside = append(beside, c.creates(key, "x", ""))
	}
	all, some := other.watches(""), other.watches("orders/1")
	if n := len(all.begins()); n != len(there)+len(beside) {
		w.Fatalf("a watch of everything begins with %d items, want %d", n, len(there)+len(beside))
	}
	began := some.begins()
	if d := difference(began, slices.Collect(maps.Keys(there))); d != "" {
		w.Fatal("what a watch begins with: ", d)
	}
	for key, item := range there {
		w.same(began[key], withoutNote(item))
	}
	item := began["orders/1"]
	for n := range 3 {
		for i := range beside {
			beside[i] = c.writes(beside[i], fmt.Sprint(n), "")
		}
		item = some.has(c.writes(item, fmt.Sprint(n), "note"))
		c.deletes(item)
		gone := some.next()
		if gone.Key != item.Key || gone.Live || gone.Number <= item.Number {
			w.Fatalf("the deletion is watched as\n%s", show(gone))
		}
		item = gone
	}
	late := some.has(c.creates("orders/14", "x", "note"))
	w.NoErrorf(all.shows(map[string]cas.Item{}, late, item, beside[0]), "a watch of everything")
}

// shows reads until the watch has shown items as they are. seen is what it has shown before.
func (v *watching) shows(seen map[string]cas.Item, as ...cas.Item) error {
	v.w.Helper()
	for _, want := range as {
		for got := seen[want.Key]; got.Live != want.Live || want.Live && got.Version != want.Version; got = seen[want.Key] {
			item, err := v.reads()
			switch {
			case v.w.ctx.Err() != nil:
				v.w.Fatalf("a watch has as the last item\n%s\nwant\n%s", show(got), show(want))
			case err != nil:
				return err
			}
			seen[item.Key] = item
		}
	}
	return nil
}

// lastOfSeveral changes items while a watch begins and nobody reads it.
func lastOfSeveral(w *world) {
	c, other := w.client(), w.client()
	last := map[string]cas.Item{}
	for n := range 4 {
		key := fmt.Sprint("orders/", n)
		last[key] = c.creates(key, "first", "")
	}
	for round := range 3 {
		v, seen := other.watches("orders/"), map[string]cas.Item{}
		for n := range 15 {
			for key, item := range last {
				if item.Live && (n+round)%4 == 0 {
					last[key] = c.deletes(item)
				} else {
					last[key] = c.writes(item, fmt.Sprint(round, " ", n), "")
				}
			}
			if n == 5 {
				item := v.next()
				seen[item.Key] = item
			}
		}
		last["orders/0"] = c.deletes(c.writes(last["orders/0"], "to be deleted", ""))
		w.NoErrorf(v.shows(seen, slices.Collect(maps.Values(last))...), "a watch")
		v.cancel()
	}
}

// watchErr watches until the watch ends, and tells at of each item.
func (c client) watchErr(ctx context.Context, at func(item cas.Item)) error {
	for item, err := range as[cas.Watcher](c).Watch(ctx, "orders/") {
		if err != nil {
			return err
		}
		at(item)
	}
	return nil
}

func watchEnds(w *world) {
	c := w.client()
	for n := range 3 {
		c.creates(fmt.Sprint("orders/", n), "x", "")
	}
	ctx, cancel := cancelled(w)
	w.endsWith(context.Canceled, func() error { return c.watchErr(ctx, func(cas.Item) {}) }, "a watch whose context has ended before")
	cancel()
	for what, ends := range map[string]func(item cas.Item) bool{
		"an item":       func(item cas.Item) bool { return item.Key != "" },
		"the beginning": func(item cas.Item) bool { return item.Key == "" },
	} {
		ctx, cancel := context.WithCancel(w.ctx)
		w.endsWith(context.Canceled, func() error {
			return c.watchErr(ctx, func(item cas.Item) {
				if ends(item) {
					cancel()
				}
			})
		}, "a watch whose context ends at "+what)
		cancel()
	}
	ctx, cancel = context.WithTimeout(w.ctx, 300*time.Millisecond)
	defer cancel()
	w.endsWith(context.DeadlineExceeded, func() error { return c.watchErr(ctx, func(cas.Item) {}) }, "a watch without changes")
}

func leavesAWatch(w *world) {
	c := w.client()
	item := c.creates("orders/0", "x", "")
	for n := range 10 {
		c.creates(fmt.Sprint("orders/1", n), "x", "")
	}
	const atAnItem, atTheBeginning, atAChange = 0, 1, 2
	for n := range 30 {
		ctx, cancel := context.WithTimeout(w.ctx, 3*soon)
		at, began, left := n%3, false, false
		for got, err := range as[cas.Watcher](c).Watch(ctx, "orders/") {
			w.NoErrorf(err, "a watch has ended")
			if left = at == atAnItem || at == atTheBeginning && got.Key == "" || at == atAChange && began; left {
				break
			}
			if began = began || got.Key == ""; began {
				item = c.writes(item, fmt.Sprint(n), "")
			}
		}
		cancel()
		w.Mustf(left, "a watch has ended without an error")
	}
	c.is(item)
}

func silentWatch(w *world) {
	c, p := w.behind()
	c.creates("orders/1", "x", "")
	for _, what := range []string{"before it begins", "once it has begun"} {
		if what == "before it begins" {
			p.Freeze()
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		w.endsWith(context.DeadlineExceeded, func() error {
			return c.watchErr(ctx, func(item cas.Item) {
				if item.Key == "" {
					p.Freeze()
				}
			})
		}, "a watch of a server that is silent "+what)
		cancel()
		p.Pass()
		c.answers()
	}
}

// cutWatch changes items while the connection of a watch is cut. A watch that ends with an error is
// begun again.
func cutWatch(w *world) {
	c, p := w.behind()
	other := w.client()
	replaced, deleted := other.creates("orders/1", "x", ""), other.creates("orders/2", "x", "")
	v := c.watches("orders/")
	seen := v.begins()
	catchesUp := func(all ...cas.Item) {
		for err := v.shows(seen, all...); err != nil; err = v.shows(seen, all...) {
			w.Mustf(!errors.Is(err, errWithoutError), "a watch: %v", err)
			c.answers()
			v = c.watches("orders/")
			seen = v.begins()
		}
	}
	for n := range 2 {
		p.Cut()
		replaced = other.writes(replaced, fmt.Sprint(n), "")
		deleted = other.deletes(other.writes(deleted, fmt.Sprint(n), ""))
		added := other.creates(fmt.Sprint("orders/added/", n), "x", "")
		p.Pass()
		catchesUp(replaced, deleted, added)
		deleted = other.writes(deleted, "again", "")
		catchesUp(deleted)
	}
}

// listsWhileAReplicaLags has clients list items whose writes were acknowledged before, while a server
// that may answer lacks some of them.
func listsWhileAReplicaLags(w *world) {
	const before, falls, after, least = 50, 3, 5, 10 // least is the number of lists of each client after each fall
	writer, readers := w.client(), []client{w.client(), w.client(), w.client()}
	items := 0
	write := func(more int) {
		for range more {
			writer.insists(fmt.Sprint("old/", items))
			items++
		}
	}
	var whole, failed atomic.Int32
	reads := func(what string, all iter.Seq2[cas.Item, error]) {
		live := map[string]bool{}
		for item, err := range all {
			if err != nil {
				failed.Add(1)
				return
			}
			if item.Key == "" {
				break // the watch has begun
			}
			live[item.Key] = item.Live
		}
		if len(live) < items {
			w.Errorf("a %s has %d of %d items, and no error", what, len(live), items)
			return
		}
		whole.Add(1)
	}
	write(before)
	for range falls {
		lags := w.rig.Lag(w)
		write(after)
		for n := 0; w.ctx.Err() == nil && (n < least || lags()); n++ {
			w.atOnce(readers, func(_ int, c client) {
				reads("list", c.List(w.ctx, "old/"))
				if watcher, ok := c.Store.(cas.Watcher); ok {
					reads("watch", watcher.Watch(w.ctx, "old/"))
				}
			})
		}
	}
	w.Logf("%d were whole, %d ended with an error", whole.Load(), failed.Load())
	if n := len(writer.lists("old/")); n < items {
		w.Errorf("in the end, a list has %d of %d items", n, items)
	}
}

// insists creates an item, through errors.
func (c client) insists(key string) {
	c.w.Helper()
	for {
		item, err := c.Get(c.w.ctx, key)
		if err == nil && !item.Live {
			_, err = c.Swap(c.w.ctx, item, []byte("v"), nil)
		}
		if err == nil {
			return
		}
		c.w.Mustf(c.w.pause() == nil, "create %q: %v", key, err)
	}
}
