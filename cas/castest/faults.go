package castest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/servers/proxy"
)

func cancelled(w *world) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	return ctx, cancel
}

func endedContext(w *world) {
	c := w.client()
	item := c.creates("orders", "x", "")
	ctx, cancel := cancelled(w)
	defer cancel()
	w.endsWith(context.Canceled, func() error { _, err := c.Get(ctx, "orders"); return err }, "get")
	w.endsWith(context.Canceled, func() error { _, err := c.Swap(ctx, item, nil, nil); return err }, "swap")
	w.endsWith(context.Canceled, func() error { return c.Delete(ctx, item) }, "delete")
	w.endsWith(context.Canceled, func() error { return c.listErr(ctx) }, "list")
}

func (c client) listErr(ctx context.Context) (err error) {
	for _, err = range c.List(ctx, "") {
		if err != nil {
			return err
		}
	}
	return nil
}

// soon is long for a call that nothing holds up.
const soon = 5 * time.Second

func (w *world) endsWith(want error, call func() error, what string) {
	w.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		w.Wantf(errors.Is(err, want) && !errors.Is(err, cas.ErrConflict), "%s: err = %v, want %q", what, err, want)
	case <-time.After(4 * soon): // a machine may stall
		w.Fatalf("%s has not returned %v after its context ended", what, 4*soon)
	case <-w.ctx.Done():
		w.Fatalf("%s has not returned after its context ended", what)
	}
}

func silent(w *world) {
	c, p := w.behind()
	item := c.creates("orders", "x", "")
	for what, call := range map[string]func(ctx context.Context) error{
		"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "orders"); return err },
		"swap":   func(ctx context.Context) error { _, err := c.Swap(ctx, item, []byte("y"), nil); return err },
		"delete": func(ctx context.Context) error { return c.Delete(ctx, item) },
		"list":   c.listErr,
	} {
		p.Freeze()
		ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
		w.endsWith(context.DeadlineExceeded, func() error { return call(ctx) }, what)
		cancel()
		p.Pass()
	}
	c.answers()
}

// answers waits until the store is used again.
func (c client) answers() {
	c.w.Helper()
	c.w.eventually(func() string {
		ctx, cancel := context.WithTimeout(c.w.ctx, soon)
		defer cancel()
		if _, err := c.Get(ctx, "orders"); err != nil {
			return "the store is not used again: " + err.Error()
		}
		return ""
	})
}

const losses = 10

func lostRequest(w *world) {
	landed := w.loses((*proxy.Proxy).LoseRequest)
	w.Wantf(landed != losses, "each of %d writes whose request was lost has landed", losses)
}

// lostAnswer finds the clients that send a request again after its answer was lost: the server
// refuses the second, because the first has changed the item.
func lostAnswer(w *world) {
	landed := w.loses((*proxy.Proxy).LoseAnswer)
	w.Wantf(landed != 0, "none of %d writes whose answer was lost has landed: the suite lost the request", losses)
}

// loses writes through a proxy that loses something, and returns how many of the writes that
// failed have landed. A write that has landed must not conflict, and one that succeeded must be
// there.
func (w *world) loses(lose func(*proxy.Proxy)) (landed int) {
	w.Helper()
	c, p := w.behind()
	witness := w.client()
	item := c.creates("orders", "0", "")
	for n := range losses {
		value := []byte{byte('a' + n)}
		item = c.writes(item, "0", "") // clients prepare what they send the first time
		lose(p)
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		_, err := c.Swap(ctx, item, value, nil)
		cancel()
		p.Pass()
		now := w.settled(witness, item)
		switch applied := string(now.Value) == string(value); {
		case errors.Is(err, cas.ErrConflict):
			w.Fatalf("a write conflicts that nothing has conflicted with; it landed: %v; err = %v", applied, err)
		case err == nil && !applied:
			w.Fatalf("a write succeeded, and the item is\n%s", show(now))
		case err != nil && applied:
			landed++
		}
		item = now
		c.answers()
	}
	w.Mustf(p.Struck() != 0, "the proxy has lost nothing")
	return landed
}

// settled writes the item once more, so that a write that is still on its way cannot land.
func (w *world) settled(c client, before cas.Item) cas.Item {
	w.Helper()
	for {
		now, err := c.Get(w.ctx, before.Key)
		w.NoError(err)
		item, err := c.Swap(w.ctx, now, now.Value, now.Note)
		if err == nil {
			return item
		}
		if !errors.Is(err, cas.ErrConflict) {
			w.Fatal(err)
		}
	}
}

func away(w *world) {
	c, p := w.behind()
	item := c.creates("orders", "x", "")
	for range 3 {
		p.Cut()
		ctx, cancel := context.WithTimeout(w.ctx, 300*time.Millisecond)
		for what, err := range map[string]error{
			"get":  func() error { _, err := c.Get(ctx, "orders"); return err }(),
			"swap": func() error { _, err := c.Swap(ctx, item, []byte("y"), nil); return err }(),
			"list": c.listErr(ctx),
		} {
			w.Wantf(err != nil && !errors.Is(err, cas.ErrConflict), "%s while the store is away: err = %v", what, err)
		}
		cancel()
		p.Pass()
		c.answers()
		item = c.writes(w.settled(c, item), "x", "")
	}
}

// failingList has the connection fail before a list and within it.
func failingList(w *world) {
	const items = 600 // on a few pages
	c, p := w.behind()
	for i := range items {
		if _, err := c.Swap(w.ctx, cas.Item{Key: fmt.Sprint("orders/", i)}, []byte("x"), nil); err != nil {
			w.Fatal(err)
		}
	}
	w.eventually(func() string { return unless(len(c.lists("orders/")) == items, "a list has not all items") })
	for _, f := range []struct {
		what string
		at   int // the number of items before
		fail func()
	}{
		{"a lost answer", 0, p.LoseAnswer},
		{"a lost answer", items / 2, p.LoseAnswer},
		{"a lost request", 1, p.LoseRequest},
		{"a connection that ends", 1, func() { p.Cut(); p.Pass() }},
		{"a server that stops a while", 1, func() { p.Freeze(); time.AfterFunc(3*time.Second/2, p.Pass) }},
	} {
		if f.at == 0 {
			f.fail()
		}
		ctx, cancel := context.WithTimeout(w.ctx, soon/2)
		var failed error
		n := 0
		for _, err := range c.List(ctx, "orders/") {
			if failed = err; err != nil {
				break
			}
			if n++; n == f.at {
				f.fail()
			}
		}
		cancel()
		w.Wantf(failed != nil || n == items, "%s after item %d: the list has %d items of %d, and no error", f.what, f.at, n, items)
		p.Pass()
		c.answers()
	}
}

// foreign reads what clients of the store's own have written: as an item with the value that they
// wrote, or as an error that says what it is. Either way nobody's value is lost unseen.
func foreign(w *world) {
	c := w.client()
	own := c.creates("orders/own", "1", "one")
	for i, what := range slices.Sorted(maps.Keys(w.rig.Foreign)) {
		key := fmt.Sprintf("orders/%d", i)
		value := w.rig.Foreign[what](w, key)
		_, err := c.Swap(w.ctx, cas.Item{Key: key}, []byte("x"), nil)
		w.conflicts(err, "swap from absence over "+what)
		item, err := c.Get(w.ctx, key)
		switch {
		case errors.Is(err, cas.ErrForeign):
			w.Wantf(strings.Contains(err.Error(), strconv.Quote(key)), "%s: the error does not name the key: %v", what, err)
			w.conflicts(c.Delete(w.ctx, cas.Item{Key: key, Live: true, Version: own.Version, Number: own.Number}), "delete of "+what)
			if all, ok := c.Store.(cas.BatchGetter); ok {
				_, err := all.GetAll(w.ctx, []string{own.Key, key})
				w.Wantf(errors.Is(err, cas.ErrForeign), "%s, read together with an item: err = %v, want %q", what, err, cas.ErrForeign)
			}
		case err != nil:
			w.Errorf("%s: err = %v, want none, or %q", what, err, cas.ErrForeign)
		case !item.Live || string(item.Value) != string(value):
			w.Errorf("%s is read as\n%s\nand %q was written", what, show(item), value)
		default:
			c.writes(item, "ours", "")
			c.refused(item, what+" that was replaced")
		}
	}
	c.is(own)
	items := c.lists("orders/")
	w.Wantf(items[own.Key].Version == own.Version, "the list lacks %q beside what others have written: %v", own.Key, items)
}

// full writes to a store that has no room, deletes from it, and writes once there is room.
func full(w *world) {
	c := w.client()
	item, other := c.creates("orders", "1", "one"), c.creates("payments", "1", "one")
	room := w.rig.Full(w)
	for _, seen := range []cas.Item{item, {Key: "stock"}} {
		_, err := c.Swap(w.ctx, seen, []byte("2"), []byte("two"))
		w.Wantf(errors.Is(err, cas.ErrFull), "swap %q in a store that is full: err = %v, want %q", seen.Key, err, cas.ErrFull)
	}
	c.is(item)
	c.deletes(other)
	room()
	c.writes(item, "2", "two")
}

// killed has clients append words to one item, while the server or the leader is killed in between.
func killed(w *world) {
	const kills, each = 3, 40 // each is the number of acknowledged writes between two kills
	l := &ledger{acknowledged: map[string]bool{}, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	var writers sync.WaitGroup
	for i := range clients {
		c := w.client()
		writers.Go(func() { l.write(ctx, c, i) })
	}
	for n := range kills {
		w.NoErrorf(l.await(w.ctx, (n+1)*each), "after %d kills", n)
		w.rig.Kill(w)
	}
	err := l.await(w.ctx, (kills+1)*each)
	cancel()
	writers.Wait()
	w.NoErrorf(err, "after %d kills", kills)
	words := strings.Fields(string(w.settled(w.client(), cas.Item{Key: "ledger"}).Value))
	count := map[string]int{}
	for _, word := range words {
		count[word]++
	}
	for word, n := range count {
		w.Wantf(n <= 1, "%s is there %d times", word, n)
	}
	for word := range l.acknowledged {
		w.Wantf(count[word] != 0, "%s was acknowledged and is lost", word)
	}
}

// ledger is what writers know of their writes.
type ledger struct {
	mu           sync.Mutex
	acknowledged map[string]bool
	last         error
	more         chan struct{}
}

func (l *ledger) write(ctx context.Context, c client, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		word := fmt.Sprintf("%d.%d", writer, n)
		err := appendWord(ctx, c, word)
		l.mu.Lock()
		if err == nil {
			l.acknowledged[word] = true
		} else {
			l.last = err
		}
		l.mu.Unlock()
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// appendWord tries again after a conflict alone: another error leaves the word in doubt.
func appendWord(ctx context.Context, c client, word string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		seen, err := c.Get(ctx, "ledger")
		if err != nil {
			return err
		}
		_, err = c.Swap(ctx, seen, []byte(string(seen.Value)+word+" "), nil)
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
	}
}

// await waits for a number of acknowledged writes.
func (l *ledger) await(ctx context.Context, want int) error {
	for {
		l.mu.Lock()
		n, last := len(l.acknowledged), l.last
		l.mu.Unlock()
		if n >= want {
			return nil
		}
		select {
		case <-l.more:
		case <-ctx.Done():
			return fmt.Errorf("%d writes were acknowledged, not %d; the last error is: %w", n, want, last)
		}
	}
}
