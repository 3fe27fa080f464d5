package castest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// patience bounds each history. Those with kills have three times as long: servers of a JVM each start again.
const patience = time.Minute

// world is what a history plays in.
type world struct {
	verdict.TB
	ctx context.Context
	rig Rig
}

func newWorld(t testing.TB, limit time.Duration, r Rig) *world {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &world{TB: verdict.TB{TB: t}, ctx: ctx, rig: r}
}

// client is one process that uses the store.
type client struct {
	cas.Store
	w *world
}

func (w *world) client() client {
	return client{w.rig.Open(w, direct), w}
}

// behind returns a client behind a proxy.
func (w *world) behind() (client, *proxy.Proxy) {
	p, via, err := proxy.Between()
	w.NoError(err)
	w.Cleanup(p.Close)
	s := w.rig.Open(w, via)
	return client{s, w}, p
}

// reads returns the item as it is now. A store may lag, so it asks until see agrees.
func (c client) reads(key string, see func(cas.Item) bool) cas.Item {
	c.w.Helper()
	for {
		item, err := c.Get(c.w.ctx, key)
		c.w.NoErrorf(err, "get")
		c.w.Mustf(item.Key == key, "get %q returned the item %q", key, item.Key)
		if see(item) {
			return item
		}
		c.w.Mustf(c.w.pause() == nil, "%q is still %+v", key, item)
	}
}

// pause waits a little before a lagging store is asked again.
func (w *world) pause() error {
	select {
	case <-time.After(5 * time.Millisecond):
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// is reads the item, which must be the same as want.
func (c client) is(want cas.Item) {
	c.w.Helper()
	got := c.reads(want.Key, func(item cas.Item) bool { return item.Version == want.Version && item.Live == want.Live })
	c.w.same(got, want)
}

func (w *world) same(got, want cas.Item) {
	w.Helper()
	if got.Key != want.Key || got.Live != want.Live || got.Version != want.Version || got.Number != want.Number ||
		!bytes.Equal(got.Value, want.Value) || !bytes.Equal(got.Note, want.Note) {
		w.Fatalf("the item is\n%s\nwant\n%s", show(got), show(want))
	}
}

// writes replaces seen, which must succeed.
func (c client) writes(seen cas.Item, value, note string) cas.Item {
	c.w.Helper()
	item, err := c.Swap(c.w.ctx, seen, []byte(value), []byte(note))
	c.w.NoErrorf(err, "swap")
	c.w.Mustf(item.Version != "" && item.Version != seen.Version, "version %q follows %q", item.Version, seen.Version)
	facts := c.facts()
	c.w.Mustf((!facts.Numbers || item.Number > seen.Number) && (facts.Numbers || item.Number == 0), "number %d follows %d", item.Number, seen.Number)
	c.w.same(item, cas.Item{Key: seen.Key, Live: true, Value: []byte(value), Note: []byte(note), Version: item.Version, Number: item.Number})
	c.is(item)
	return item
}

func (c client) creates(key, value, note string) cas.Item {
	c.w.Helper()
	return c.writes(cas.Item{Key: key}, value, note)
}

func (c client) facts() cas.Facts {
	c.w.Helper()
	f, err := c.Facts(c.w.ctx)
	c.w.NoErrorf(err, "facts")
	return f
}

// deletes removes seen, which must succeed, and returns the absent item.
func (c client) deletes(seen cas.Item) cas.Item {
	c.w.Helper()
	c.w.NoErrorf(c.Delete(c.w.ctx, seen), "delete")
	return c.reads(seen.Key, func(item cas.Item) bool { return !item.Live })
}

// refused tries to replace and to delete seen, which must conflict.
func (c client) refused(seen cas.Item, why string) {
	c.w.Helper()
	_, err := c.Swap(c.w.ctx, seen, []byte("refused"), []byte("refused"))
	c.w.conflicts(err, "swap from "+why)
	c.w.conflicts(c.Delete(c.w.ctx, seen), "delete of "+why)
}

func (w *world) conflicts(err error, what string) {
	w.Helper()
	w.Mustf(errors.Is(err, cas.ErrConflict), "%s: err = %v, want %q", what, err, cas.ErrConflict)
}

// atOnce runs do for each client at once.
func (w *world) atOnce(clients []client, do func(n int, c client)) {
	w.Helper()
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			<-start
			do(i, c)
		})
	}
	close(start)
	all.Wait()
	if w.Failed() {
		w.FailNow()
	}
}

// lists returns the items of a list by key.
func (c client) lists(prefix string) map[string]cas.Item {
	c.w.Helper()
	items := map[string]cas.Item{}
	for item, err := range c.List(c.w.ctx, prefix) {
		c.w.NoErrorf(err, "list %q", prefix)
		_, twice := items[item.Key]
		c.w.Mustf(!twice, "list %q has %q twice", prefix, item.Key)
		c.w.Mustf(item.Live, "list %q has %q, which is not live", prefix, item.Key)
		items[item.Key] = item
	}
	return items
}
