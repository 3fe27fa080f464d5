package castest

import (
	"context"
	"errors"
	"fmt"
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

// soon bounds a call whose context has ended.
const soon = 5 * time.Second

func (w *world) endsWith(want error, call func() error, what string) {
	w.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		w.Wantf(errors.Is(err, want) && !errors.Is(err, cas.ErrConflict), "%s: err = %v, want %q", what, err, want)
	case <-time.After(soon):
		w.Fatalf("%s has not returned %v after its context ended", what, soon)
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
