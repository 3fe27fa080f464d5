package lease

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/waits"
)

// request is one request of a member to the store.
type request struct {
	op    string // get, swap, delete, list, watch or facts
	key   string
	seen  cas.Item
	value []byte // of a swap
}

func (r request) swaps(part string) bool { return r.op == "swap" && strings.Contains(r.key, part) }

// fate carries a request out by calling do, or does not. The store has no answer for the member if it
// returns an error.
type fate func(ctx context.Context, r request, do func(context.Context) error) error

// way is a member's way to the store.
type way struct {
	inner *memstore.Store

	mu    sync.Mutex
	fate  fate
	count map[string]int // requests by operation
}

func wayTo(s *memstore.Store) *way { return &way{inner: s, count: map[string]int{}} }

// has sets the fate of all requests from now on. nil carries them out.
func (w *way) has(f fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = f
}

// first sets the fate of the next request that is so.
func (w *way) first(is func(request) bool, f fate) {
	var once sync.Once
	w.has(func(ctx context.Context, r request, do func(context.Context) error) error {
		at := pass
		if is(r) {
			once.Do(func() { at = f })
		}
		return at(ctx, r, do)
	})
}

func pass(ctx context.Context, _ request, do func(context.Context) error) error { return do(ctx) }

// refuse loses all requests at once.
func refuse(context.Context, request, func(context.Context) error) error { return errWire }

// swallow loses all requests, and nobody says so.
func swallow(ctx context.Context, _ request, _ func(context.Context) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// unanswered carries all requests out, and loses their answers.
func unanswered(ctx context.Context, _ request, do func(context.Context) error) error {
	if err := do(ctx); err != nil {
		return err
	}
	return errWire
}

// distant carries all requests out, and takes some time for each.
func distant(ctx context.Context, _ request, do func(context.Context) error) error {
	if !waits.Sleep(ctx, time.Millisecond) {
		return ctx.Err()
	}
	return do(ctx)
}

// slow carries all requests out, and their answers take a second.
func slow(ctx context.Context, _ request, do func(context.Context) error) error {
	err := do(ctx)
	<-time.After(time.Second)
	return err
}

func (w *way) counted(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[op]
}

func (w *way) pass(ctx context.Context, r request, do func(context.Context) error) error {
	w.mu.Lock()
	w.count[r.op]++
	f := w.fate
	w.mu.Unlock()
	if f == nil {
		f = pass
	}
	return f(ctx, r, do)
}

func (w *way) Facts(ctx context.Context) (facts cas.Facts, err error) {
	err = w.pass(ctx, request{op: "facts"}, func(ctx context.Context) (err error) {
		facts, err = w.inner.Facts(ctx)
		return err
	})
	return facts, err
}

func (w *way) Get(ctx context.Context, key string) (item cas.Item, err error) {
	err = w.pass(ctx, request{op: "get", key: key}, func(ctx context.Context) (err error) {
		item, err = w.inner.Get(ctx, key)
		return err
	})
	return item, err
}

func (w *way) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	var item cas.Item
	value = slices.Clone(value)
	err := w.pass(ctx, request{op: "swap", key: seen.Key, seen: seen, value: value}, func(ctx context.Context) error {
		made, err := w.inner.Swap(ctx, seen, value, note)
		item = made
		return err
	})
	if err != nil {
		return cas.Item{}, err
	}
	return item, nil
}

func (w *way) Delete(ctx context.Context, seen cas.Item) error {
	return w.pass(ctx, request{op: "delete", key: seen.Key, seen: seen}, func(ctx context.Context) error { return w.inner.Delete(ctx, seen) })
}

func (w *way) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		var items []cas.Item
		err := w.pass(ctx, request{op: "list", key: prefix}, func(ctx context.Context) error {
			for item, err := range w.inner.List(ctx, prefix) {
				if err != nil {
					return err
				}
				items = append(items, item)
			}
			return nil
		})
		for _, item := range items {
			if err == nil && !yield(item, nil) {
				return
			}
		}
		if err != nil {
			yield(cas.Item{}, err)
		}
	}
}

// Watch ends once the way loses requests.
func (w *way) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range w.inner.Watch(ctx, prefix) {
			if err == nil {
				err = w.pass(ctx, request{op: "watch", key: item.Key}, func(context.Context) error { return nil })
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// listed is a store that reports no changes, as most do.
type listed struct {
	cas.Store
	whole, numbers bool
}

func (l listed) Facts(ctx context.Context) (cas.Facts, error) {
	facts, err := l.Store.Facts(ctx)
	facts.ListsWhole, facts.Numbers = l.whole, l.numbers
	return facts, err
}

func (l listed) of(item cas.Item) cas.Item {
	if !l.numbers {
		item = unnumbered(item)
	}
	return item
}

func (l listed) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := l.Store.Get(ctx, key)
	return l.of(item), err
}

func (l listed) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	item, err := l.Store.Swap(ctx, seen, value, note)
	return l.of(item), err
}

func (l listed) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range l.Store.List(ctx, prefix) {
			if !l.whole {
				item.Value = nil
			}
			if !yield(l.of(item), err) {
				return
			}
		}
	}
}

// unnumbered returns an item as a store without numbers has it.
func unnumbered(item cas.Item) cas.Item {
	item.Number = 0
	return item
}

// said keeps the lines that members log.
