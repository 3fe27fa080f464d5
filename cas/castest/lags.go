package castest

import (
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/epochfence/epochfence/cas"
)

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
