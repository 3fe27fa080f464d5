package castest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
)

// broken is a store in which a guard is missing: each function that is set is called instead of the
// sound one.
type broken struct {
	*memstore.Store
	mu     sync.Mutex
	get    func(ctx context.Context, key string) (cas.Item, error)
	getAll func(ctx context.Context, keys []string) ([]cas.Item, error)
	swap   func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error)
	all    func(ctx context.Context, writes []cas.Write) []cas.Written
	delete func(ctx context.Context, seen cas.Item) error
	list   func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error]
	watch  func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error]
	facts  func(f cas.Facts) cas.Facts
	killed func()
	lags   bool // a replica lags, see Rig.Lag

	strange func(key string) // writes what is no item
	off     time.Duration    // of its clock
	none    error            // what Swap returns when there is no room

	restored func() // is called once a backup was restored

	compare func(seen cas.Item) cas.Item              // what SwapFor compares with the item
	expire  func(written cas.Item, ttl time.Duration) // is called by SwapFor
}

func newBroken() *broken {
	s := memstore.New()
	b := &broken{Store: s, get: s.Get, swap: s.Swap, delete: s.Delete, list: s.List, watch: s.Watch, facts: func(f cas.Facts) cas.Facts { return f }, none: cas.ErrFull}
	b.strange = func(key string) {
		b.get = func(ctx context.Context, k string) (cas.Item, error) {
			if k == key {
				return cas.Item{}, fmt.Errorf("get %q: %w", k, cas.ErrForeign)
			}
			return s.Get(ctx, k)
		}
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			if seen.Key == key {
				return cas.Item{}, fmt.Errorf("swap %q: %w", key, cas.ErrConflict)
			}
			return s.Swap(ctx, seen, value, note)
		}
	}
	b.compare = func(seen cas.Item) cas.Item { return seen }
	b.getAll = func(ctx context.Context, keys []string) (items []cas.Item, err error) {
		for _, key := range keys {
			item, err := b.get(ctx, key)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		return items, nil
	}
	b.all = func(ctx context.Context, writes []cas.Write) (results []cas.Written) {
		for _, w := range writes {
			item, err := b.swap(ctx, w.Seen, w.Value, w.Note)
			results = append(results, cas.Written{Item: item, Err: err})
		}
		return results
	}
	b.expire = func(written cas.Item, ttl time.Duration) {
		time.AfterFunc(ttl, func() { _ = s.Delete(context.Background(), written) })
	}
	return b
}

var (
	_ cas.Expirer      = (*broken)(nil)
	_ cas.BatchGetter  = (*broken)(nil)
	_ cas.BatchSwapper = (*broken)(nil)
)

func (b *broken) Get(ctx context.Context, key string) (cas.Item, error) { return b.get(ctx, key) }
func (b *broken) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	return b.getAll(ctx, keys)
}
func (b *broken) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	return b.all(ctx, writes)
}
func (b *broken) Now(ctx context.Context) (time.Time, error) {
	now, err := b.Store.Now(ctx)
	return now.Add(b.off), err
}
func (b *broken) Delete(ctx context.Context, seen cas.Item) error { return b.delete(ctx, seen) }

func (b *broken) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	return b.swap(ctx, seen, value, note)
}

func (b *broken) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return b.list(ctx, prefix)
}

func (b *broken) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return b.watch(ctx, prefix)
}

func (b *broken) SwapFor(ctx context.Context, seen cas.Item, value []byte, ttl time.Duration) (cas.Item, error) {
	item, err := b.Store.Swap(ctx, b.compare(seen), value, nil)
	if err == nil {
		b.expire(item, ttl)
	}
	return item, err
}

func (b *broken) Facts(ctx context.Context) (cas.Facts, error) {
	f, err := b.Store.Facts(ctx)
	return b.facts(f), err
}

func (b *broken) rig() Rig {
	empty := b.Backup()
	return Rig{
		Empty: func(testing.TB) { empty() },
		Open:  func(testing.TB, func(string) string) cas.Store { return b },
		Backup: func(testing.TB) func() {
			restore := b.Backup()
			return func() {
				restore()
				if b.restored != nil {
					b.restored()
				}
			}
		},
		Failover: func(testing.TB) func() { return b.Backup() },
		Lag: func(testing.TB) func() bool {
			b.lags = true
			return func() bool { return false }
		},
		Kill: func(testing.TB) {
			if b.killed != nil {
				b.killed()
			}
		},
		Native: func(t testing.TB, key string) []byte {
			item, err := b.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return item.Value
		},
		Foreign: map[string]func(testing.TB, string) []byte{
			"a list": func(_ testing.TB, key string) []byte { b.strange(key); return nil },
		},
		Full: func(testing.TB) func() {
			swap := b.swap
			b.swap = func(_ context.Context, seen cas.Item, _, _ []byte) (cas.Item, error) {
				return cas.Item{}, fmt.Errorf("swap %q: %w", seen.Key, b.none)
			}
			return func() { b.swap = swap }
		},
	}
}

// now is the item as it is, for a store that checks less.
func (b *broken) now(ctx context.Context, seen cas.Item) cas.Item {
	item, err := b.Store.Get(ctx, seen.Key)
	if err != nil {
		return seen
	}
	return item
}

var teeth = []struct {
	name   string
	take   func(b *broken)
	caught string // the beginning of a claim
}{
	{"what is no item is absent", func(b *broken) { b.strange = func(string) {} }, "what another program"},
	{"a full store is in doubt", func(b *broken) { b.none = errors.New("OOM") }, "a full store"},
	{"the clock is that of another zone", func(b *broken) { b.off = 2 * time.Hour }, "a clock shows"},
	{"nothing is compared", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			return b.Store.Swap(ctx, b.now(ctx, seen), value, note)
		}
	}, "an item that has changed"},
	{"a deletion compares nothing", func(b *broken) {
		b.delete = func(ctx context.Context, seen cas.Item) error { return b.Store.Delete(ctx, b.now(ctx, seen)) }
	}, "an item that has changed"},
	{"the content is compared", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			now := b.now(ctx, seen)
			if now.Live == seen.Live && bytes.Equal(now.Value, seen.Value) && bytes.Equal(now.Note, seen.Note) {
				seen = now
			}
			return b.Store.Swap(ctx, seen, value, note)
		}
	}, "the same content again"},
	{"the comparison and the write are two requests", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			now := b.now(ctx, seen)
			if now.Version != seen.Version {
				return cas.Item{}, fmt.Errorf("swap %q: %w", seen.Key, cas.ErrConflict)
			}
			runtime.Gosched()
			for {
				if item, err := b.Store.Swap(ctx, b.now(ctx, seen), value, note); err == nil || ctx.Err() != nil {
					return item, err
				}
			}
		}
	}, "of writes at the same time"},
	{"an absent item is whatever was deleted", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			if now := b.now(ctx, seen); seen.Version == "" {
				return b.Store.Swap(ctx, now, value, note)
			}
			return b.Store.Swap(ctx, seen, value, note)
		}
	}, "an item that was deleted"},
	{"versions are counted from 1 after a deletion", func(b *broken) { b.numbered(true) }, "an item that was deleted"},
	{"versions are numbers, which a backup repeats", func(b *broken) { b.numbered(false) }, "the version of a write that a restored"},
	{"versions are numbers, which a backup repeats after the store has written for itself", func(b *broken) {
		b.numbered(false)
		b.restored = func() {
			for n := range 20 {
				_, _ = b.Store.Swap(context.Background(), cas.Item{Key: fmt.Sprint("of its own/", n)}, nil, nil)
			}
		}
	}, "the version of a write that a restored"},
	{"versions are numbers, which a failover repeats", func(b *broken) { b.numbered(false) }, "the version of a write that a failover"},
	{"a replica that lags answers a list", func(b *broken) { b.list = b.short(b.Store.List) }, "a list and the beginning"},
	{"a replica that lags answers a watch", func(b *broken) { b.watch = b.short(b.Store.Watch) }, "a list and the beginning"},
	{"an emptied store is the one it was", func(b *broken) {
		b.facts = func(f cas.Facts) cas.Facts { f.Source = "same"; return f }
	}, "a store that was emptied"},
	{"numbers stand still", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			item, err := b.Store.Swap(ctx, seen, value, note)
			item.Number = 1
			return item, err
		}
	}, "numbers grow"},
	{"the note is lost", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, _ []byte) (cas.Item, error) {
			return b.Store.Swap(ctx, seen, value, nil)
		}
	}, "what was written is read"},
	{"values are texts", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			return b.Store.Swap(ctx, seen, []byte(strings.ToValidUTF8(string(value), "?")), note)
		}
	}, "what was written is read"},
	{"keys are trimmed", func(b *broken) { b.renamed(strings.TrimSpace) }, "keys of every kind"},
	{"keys have no case", func(b *broken) { b.renamed(strings.ToLower) }, "keys of every kind"},
	{"keys are paths", func(b *broken) {
		b.renamed(func(key string) string { return strings.ReplaceAll(key, "//", "/") })
	}, "keys of every kind"},
	{"a list has a page of 500", func(b *broken) {
		b.listing(func(items []cas.Item) []cas.Item { return items[:min(len(items), 500)] })
	}, "a thousand items"},
	{"a list repeats an item", func(b *broken) {
		b.listing(func(items []cas.Item) []cas.Item { return append(items, items[:min(len(items), 1)]...) })
	}, "a thousand items"},
	{"a list has what was deleted", func(b *broken) {
		b.listing(func(items []cas.Item) []cas.Item { return append(items, cas.Item{Key: "gone", Version: "1"}) })
	}, "a list has each item"},
	{"a list ends at a path", func(b *broken) {
		b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			if prefix != "" && !strings.HasSuffix(prefix, "/") {
				prefix += "/"
			}
			return b.Store.List(ctx, prefix)
		}
	}, "a list has each item"},
	{"a list goes on after its reader has left", func(b *broken) {
		b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				for item, err := range b.Store.List(ctx, prefix) {
					_ = yield(item, err)
				}
			}
		}
	}, "a reader may leave"},
	{"a list says that it is whole", func(b *broken) {
		b.listing(func(items []cas.Item) []cas.Item {
			for i := range items {
				items[i].Note = nil
			}
			return items
		})
	}, "a thousand items"},
	{"a large item is cut short", func(b *broken) {
		b.facts = func(f cas.Facts) cas.Facts { f.MaxValue, f.MaxNote = 1000, 1000; return f }
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			return b.Store.Swap(ctx, seen, value[:min(len(value), 1000)], note)
		}
	}, "an item at the limits"},
	{"items that are read together come in the store's order", func(b *broken) {
		all := b.getAll
		b.getAll = func(ctx context.Context, keys []string) ([]cas.Item, error) {
			return all(ctx, slices.Sorted(slices.Values(keys)))
		}
	}, "items that are read together are"},
	{"items that are read together are those that exist", func(b *broken) {
		all := b.getAll
		b.getAll = func(ctx context.Context, keys []string) ([]cas.Item, error) {
			items, err := all(ctx, keys)
			return slices.DeleteFunc(items, func(item cas.Item) bool { return !item.Live }), err
		}
	}, "items that are read together are"},
	{"values and notes that are read together are two requests", func(b *broken) {
		all := b.getAll
		b.getAll = func(ctx context.Context, keys []string) ([]cas.Item, error) {
			items, err := all(ctx, keys)
			if err != nil {
				return nil, err
			}
			runtime.Gosched()
			notes, err := all(ctx, keys)
			for i := range notes {
				items[i].Note = notes[i].Note
			}
			return items, err
		}
	}, "items that are read together have value and note"},
	{"a key that cannot be read among others is absent", func(b *broken) {
		b.getAll = func(ctx context.Context, keys []string) (items []cas.Item, err error) {
			for _, key := range keys {
				item, _ := b.Store.Get(ctx, key)
				item.Key = key
				items = append(items, item)
			}
			return items, nil
		}
	}, "a key that is impossible"},
	{"results come in the store's order", func(b *broken) {
		all := b.all
		b.all = func(ctx context.Context, writes []cas.Write) []cas.Written {
			return all(ctx, slices.SortedFunc(slices.Values(writes), func(x, y cas.Write) int { return strings.Compare(x.Seen.Key, y.Seen.Key) }))
		}
	}, "items that are written together"},
	{"one refusal refuses all", func(b *broken) {
		all := b.all
		b.all = func(ctx context.Context, writes []cas.Write) []cas.Written {
			results := all(ctx, writes)
			if i := slices.IndexFunc(results, func(r cas.Written) bool { return r.Err != nil }); i >= 0 {
				return slices.Repeat(results[i:i+1], len(results))
			}
			return results
		}
	}, "items that are written together"},
	{"the rest is forgotten", func(b *broken) {
		all := b.all
		b.all = func(ctx context.Context, writes []cas.Write) []cas.Written {
			return all(ctx, writes[:min(len(writes), 100)])
		}
	}, "items that are written together"},
	{"items that are written together are compared before", func(b *broken) {
		b.all = func(ctx context.Context, writes []cas.Write) []cas.Written {
			results := make([]cas.Written, len(writes))
			for i, w := range writes {
				if now, err := b.Store.Get(ctx, w.Seen.Key); err != nil || now.Version != w.Seen.Version {
					results[i].Err = cmp.Or(err, cas.ErrConflict)
				}
			}
			runtime.Gosched()
			for i, w := range writes {
				if now, _ := b.Store.Get(ctx, w.Seen.Key); results[i].Err == nil {
					results[i].Item, results[i].Err = b.Store.Swap(ctx, now, w.Value, w.Note)
				}
			}
			return results
		}
	}, "of writes together"},
	{"writes together do not end", func(b *broken) {
		all := b.all
		b.all = func(_ context.Context, writes []cas.Write) []cas.Written { return all(context.Background(), writes) }
	}, "items that are written together"},
	{"no key is refused", func(b *broken) {
		b.get = func(ctx context.Context, key string) (cas.Item, error) { return b.Store.Get(ctx, key+"x") }
	}, "an impossible key"},
	{"the context is not asked", func(b *broken) {
		b.get = func(_ context.Context, key string) (cas.Item, error) { return b.Store.Get(context.Background(), key) }
	}, "a context that has ended"},
	{"an error says nothing", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			item, err := b.Store.Swap(ctx, seen, value, note)
			if err != nil {
				err = cas.ErrConflict
			}
			return item, err
		}
	}, "errors name the key"},
	{"the value is wrapped", func(b *broken) {
		b.get = func(ctx context.Context, key string) (cas.Item, error) {
			item, err := b.Store.Get(ctx, key)
			item.Value = fmt.Appendf(nil, "<%s>", item.Value)
			return item, err
		}
	}, "a client of the store's own"},
	{"a store is born with items", func(b *broken) {
		if _, err := b.Store.Swap(context.Background(), cas.Item{Key: "orders"}, nil, nil); err != nil {
			panic(err)
		}
	}, "an item that nobody has written"},
	{"first writes overwrite", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			if seen.Version == "" {
				seen = b.now(ctx, seen)
			}
			return b.Store.Swap(ctx, seen, value, note)
		}
	}, "of first writes"},
	{"a deletion always succeeds", func(b *broken) {
		b.delete = func(ctx context.Context, seen cas.Item) error { _ = b.Store.Delete(ctx, seen); return ctx.Err() }
	}, "of a write and a deletion"},
	{"a new leader lacks the last writes", func(b *broken) {
		back := b.Backup()
		b.killed = func() { back(); back = b.Backup() }
	}, "while the server or the leader is killed"},
	{"a write is carried out twice", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			item, err := b.Store.Swap(ctx, seen, value, note)
			if words := strings.Fields(string(value)); err == nil && len(words) > 0 {
				return b.Store.Swap(ctx, item, append(value, words[len(words)-1]+" "...), note)
			}
			return item, err
		}
	}, "while the server or the leader is killed"},
	{"the note is read after the value", func(b *broken) {
		b.get = func(ctx context.Context, key string) (cas.Item, error) {
			item, err := b.Store.Get(ctx, key)
			runtime.Gosched()
			later := b.now(ctx, item)
			item.Note = later.Note
			return item, err
		}
	}, "value and note are read"},
	{"the caller's slices are kept", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			item, err := b.Store.Swap(ctx, seen, value, note)
			item.Value, item.Note = value, note
			return item, err
		}
	}, "the caller may change"},
	{"a list holds a lock that a write needs", func(b *broken) {
		lock := make(chan struct{}, 1)
		b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				lock <- struct{}{}
				defer func() { <-lock }()
				b.Store.List(ctx, prefix)(yield)
			}
		}
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			select {
			case lock <- struct{}{}:
				defer func() { <-lock }()
				return b.Store.Swap(ctx, seen, value, note)
			case <-ctx.Done():
				return cas.Item{}, ctx.Err()
			}
		}
	}, "a list may be changed"},
	{"a list goes on with what is written", func(b *broken) {
		b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				for range 2 {
					for item, err := range b.Store.List(ctx, prefix) {
						if !yield(item, err) {
							return
						}
					}
				}
			}
		}
	}, "a list may be changed"},
	{"a list lacks what is replaced before it comes to it", func(b *broken) {
		b.listing(func(items []cas.Item) []cas.Item {
			runtime.Gosched()
			return slices.DeleteFunc(items, func(item cas.Item) bool {
				now, err := b.Store.Get(context.Background(), item.Key)
				return err == nil && now.Live && now.Version != item.Version
			})
		})
	}, "an item that is replaced"},
	{"what was seen absent is deleted", func(b *broken) {
		b.delete = func(ctx context.Context, seen cas.Item) error {
			if seen.Version == "" {
				seen = b.now(ctx, seen)
			}
			return b.Store.Delete(ctx, seen)
		}
	}, "an item that has changed"},
	{"the source is that of the beginning", func(b *broken) {
		var once sync.Once
		var first string
		b.facts = func(f cas.Facts) cas.Facts {
			once.Do(func() { first = f.Source })
			f.Source = first
			return f
		}
	}, "a store that was emptied"},
	{"one call at a time", func(b *broken) {
		var busy atomic.Bool
		b.get = func(ctx context.Context, key string) (cas.Item, error) {
			if !busy.CompareAndSwap(false, true) {
				return cas.Item{}, errors.New("busy")
			}
			defer busy.Store(false)
			runtime.Gosched()
			return b.Store.Get(ctx, key)
		}
	}, "several goroutines"},
	{"a conflict is a success", func(b *broken) {
		b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
			item, err := b.Store.Swap(ctx, seen, value, note)
			if err != nil && ctx.Err() == nil {
				return b.now(ctx, seen), nil
			}
			return item, err
		}
	}, "a counter that many"},
	{"a watch begins with what was deleted", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				if yield(cas.Item{Key: prefix + "3", Number: 1, Version: "1"}, nil) {
					b.Store.Watch(ctx, prefix)(yield)
				}
			}
		}
	}, "a watch begins with"},
	{"a watch has each item", func(b *broken) {
		b.watch = func(ctx context.Context, _ string) iter.Seq2[cas.Item, error] { return b.Store.Watch(ctx, "") }
	}, "a watch begins with"},
	{"a watch has no deletions", func(b *broken) {
		b.watching(func(item cas.Item) (cas.Item, bool) { return item, item.Live || item.Key == "" })
	}, "a watch begins with"},
	{"a watch has versions of its own", func(b *broken) {
		b.watching(func(item cas.Item) (cas.Item, bool) {
			item.Version = strconv.FormatInt(item.Number, 10)
			return item, true
		})
	}, "a watch begins with"},
	{"a watch does not say where the changes begin", func(b *broken) {
		b.watching(func(item cas.Item) (cas.Item, bool) { return item, item.Key != "" })
	}, "a watch begins with"},
	{"a watch lists, and then waits for what comes", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				for item, err := range b.Store.List(ctx, prefix) {
					if item.Note = nil; !yield(item, err) || err != nil {
						return
					}
				}
				began := false
				for item, err := range b.Store.Watch(ctx, prefix) {
					began = began || item.Key == "" || err != nil
					if began && !yield(item, err) {
						return
					}
				}
			}
		}
	}, "the last of several changes"},
	{"a watch drops what nobody reads", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				items := make(chan cas.Item, 1)
				go func() {
					defer close(items)
					for item, err := range b.Store.Watch(ctx, prefix) {
						if err != nil {
							return
						}
						select {
						case items <- item:
						default:
						}
					}
				}()
				for item := range items {
					if !yield(item, nil) {
						return
					}
				}
				yield(cas.Item{}, ctx.Err())
			}
		}
	}, "the last of several changes"},
	{"a watch looks at its context after each change", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				alive, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				for item, err := range b.Store.Watch(alive, prefix) {
					if ctx.Err() != nil {
						yield(cas.Item{}, ctx.Err())
						return
					}
					if !yield(item, err) {
						return
					}
				}
			}
		}
	}, "a context that has ended ends a watch"},
	{"a watch ends without an error", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				for item, err := range b.Store.Watch(ctx, prefix) {
					if err != nil || !yield(item, nil) {
						return
					}
				}
			}
		}
	}, "a context that has ended ends a watch"},
	{"a watch goes on after its reader has left", func(b *broken) {
		b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				for item, err := range b.Store.Watch(ctx, prefix) {
					_ = yield(item, err)
				}
			}
		}
	}, "a reader may leave a watch"},
	{"an item goes before its time", func(b *broken) {
		later := b.expire
		b.expire = func(written cas.Item, ttl time.Duration) { later(written, ttl/2) }
	}, "an item for a time is there"},
	{"an item goes and leaves its version", func(b *broken) {
		var gone atomic.Bool
		b.expire = func(_ cas.Item, ttl time.Duration) { time.AfterFunc(ttl, func() { gone.Store(true) }) }
		b.get = func(ctx context.Context, key string) (cas.Item, error) {
			item, err := b.Store.Get(ctx, key)
			item.Live = item.Live && !gone.Load()
			return item, err
		}
	}, "an item for a time is there"},
	{"an item that has gone is listed", func(b *broken) {
		b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
			return func(yield func(cas.Item, error) bool) {
				yield(cas.Item{Key: prefix + "1", Live: true, Version: "1"}, nil)
			}
		}
	}, "an item for a time is there"},
	{"no watch hears that an item has gone", func(b *broken) {
		b.watching(func(item cas.Item) (cas.Item, bool) { return item, item.Live || item.Key == "" })
	}, "an item for a time is there"},
	{"an item goes although it was replaced", func(b *broken) {
		b.expire = func(written cas.Item, ttl time.Duration) {
			time.AfterFunc(ttl, func() { _ = b.Store.Delete(context.Background(), b.now(context.Background(), written)) })
		}
	}, "an item for a time stays"},
	{"a write for a time compares nothing", func(b *broken) {
		b.compare = func(seen cas.Item) cas.Item { return b.now(context.Background(), seen) }
	}, "a write for a time"},
}

// watching changes or leaves out what a watch has.
func (b *broken) watching(change func(item cas.Item) (_ cas.Item, has bool)) {
	b.watch = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
		return func(yield func(cas.Item, error) bool) {
			for item, err := range b.Store.Watch(ctx, prefix) {
				if item, has := change(item); (has || err != nil) && !yield(item, err) {
					return
				}
			}
		}
	}
}

// short leaves out the first item for each third reader, as a replica does that lags.
func (b *broken) short(all func(context.Context, string) iter.Seq2[cas.Item, error]) func(context.Context, string) iter.Seq2[cas.Item, error] {
	var readers atomic.Int64
	return func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
		return func(yield func(cas.Item, error) bool) {
			misses := b.lags && readers.Add(1)%3 == 0
			for item, err := range all(ctx, prefix) {
				if misses && err == nil {
					misses = false
				} else if !yield(item, err) {
					return
				}
			}
		}
	}
}

// numbered makes versions of numbers: of the item's own, or of the store's.
func (b *broken) numbered(own bool) {
	written := map[string]int64{}
	version := func(item cas.Item) cas.Item {
		if item.Version != "" {
			item.Version = strconv.FormatInt(item.Number, 10)
			if own {
				item.Version = strconv.FormatInt(written[item.Key], 10)
			}
		}
		return item
	}
	locked := func() func() { b.mu.Lock(); return b.mu.Unlock }
	b.get = func(ctx context.Context, key string) (cas.Item, error) {
		defer locked()()
		item, err := b.Store.Get(ctx, key)
		return version(item), err
	}
	seenNow := func(ctx context.Context, seen cas.Item) cas.Item {
		now := b.now(ctx, seen)
		if version(now).Version == seen.Version {
			seen.Version = now.Version
		}
		return seen
	}
	b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
		defer locked()()
		item, err := b.Store.Swap(ctx, seenNow(ctx, seen), value, note)
		if err == nil {
			written[seen.Key]++
		}
		return version(item), err
	}
	b.delete = func(ctx context.Context, seen cas.Item) error {
		defer locked()()
		err := b.Store.Delete(ctx, seenNow(ctx, seen))
		if err == nil {
			written[seen.Key] = 0
		}
		return err
	}
}

func (b *broken) renamed(rename func(string) string) {
	b.get = func(ctx context.Context, key string) (cas.Item, error) { return b.Store.Get(ctx, rename(key)) }
	b.swap = func(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
		seen.Key = rename(seen.Key)
		return b.Store.Swap(ctx, seen, value, note)
	}
}

func (b *broken) listing(change func([]cas.Item) []cas.Item) {
	b.list = func(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
		return func(yield func(cas.Item, error) bool) {
			var items []cas.Item
			for item, err := range b.Store.List(ctx, prefix) {
				if err != nil {
					yield(item, err)
					return
				}
				items = append(items, item)
			}
			for _, item := range change(items) {
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}
