package stock

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Store is a kind of store that the show can keep the stock in.
type Store struct {
	Name string // also the scheme of its URLs
	URL  string // an example

	// Start starts a server in this process, with its data in dir. If it is nil, -sink has to be a URL.
	Start func(dir string) (url string, stop func(), err error)

	// Open connects to the server at a URL. If it fails, it leaves nothing open.
	Open func(ctx context.Context, url string) (s cas.Store, closer func(), err error)
}

// usage describes the values of -sink.
func usage(stores []Store) string {
	var all []string
	for _, s := range stores {
		if s.Start != nil {
			all = append(all, s.Name+" (a server in this process)")
		}
		all = append(all, s.URL)
	}
	return strings.Join(all, ", ")
}

// find returns the store of a value of -sink.
func find(stores []Store, sink string) (Store, error) {
	name, _, isURL := strings.Cut(sink, "://")
	for _, s := range stores {
		if s.Name == name && (isURL || s.Start != nil) {
			return s, nil
		}
	}
	return Store{}, fmt.Errorf("-sink is none of %s", usage(stores))
}

// opened is the store of -sink.
type opened struct {
	store cas.Store
	url   string
	where string // for the introduction
	close func()
}

func openStore(ctx context.Context, stores []Store, sink, dir string) (o *opened, err error) {
	s, err := find(stores, sink)
	if err != nil {
		return nil, err
	}
	o = &opened{url: sink, where: s.Name, close: func() {}}
	if !strings.Contains(sink, "://") {
		if o.url, o.close, err = s.Start(dir); err != nil {
			return nil, fmt.Errorf("-sink: %w", err)
		}
		o.where += " in this process"
	}
	ctx, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	stop := o.close
	store, closer, err := s.Open(ctx, o.url)
	if err == nil {
		o.store, o.close = store, func() { closer(); stop() }
		_, err = store.Facts(ctx) // asks the server
	}
	if err != nil {
		o.close()
		return nil, fmt.Errorf("-sink: cannot reach %s: %w", s.Name, err)
	}
	return o, nil
}

// itemBooks are the items of a column, whose keys begin with its ID.
type itemBooks struct {
	store cas.Store
	id    string
}

// atOnce limits the requests that are made side by side.
const atOnce = 16

// create makes the items, and what the status page shows.
func (b itemBooks) create(ctx context.Context, c *show.Column, count int) error {
	value, err := json.Marshal(record{Present: initial})
	if err != nil {
		return err
	}
	all, each := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for n := range count {
		all.Go(func() error {
			_, err := b.store.Swap(each, cas.Item{Key: prefix(b.id) + itemName(n)}, value, nil)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return fmt.Errorf("put %d items in stock: %w", count, err)
	}
	sink, err := cassink.Open(ctx, b.store, cassink.Options{Prefix: fences(b.id)})
	if err != nil {
		return err
	}
	c.Page.Title, c.Page.Operator = "inventory", sink.Operator()
	return nil
}

func (b itemBooks) read(ctx context.Context, each func(line), stock func(string, int64)) error {
	for item, err := range b.store.List(ctx, prefix(b.id)) {
		var r record
		if err == nil {
			err = json.Unmarshal(item.Value, &r)
		}
		if err != nil {
			return fmt.Errorf("read the stock: %w", err)
		}
		name := strings.TrimPrefix(item.Key, prefix(b.id))
		var n int32
		if _, err := fmt.Sscanf(name, "item-%d", &n); err != nil {
			return fmt.Errorf("read the stock: %q: %w", name, err)
		}
		for _, e := range r.Ledger {
			each(line{Reservation{e.ID, name, e.Quantity}, e.Epoch, e.Worker, place{e.Partition, e.Offset}, n<<10 + e.Partition})
		}
		stock(name, r.Present)
	}
	return nil
}

func (b itemBooks) applied(ctx context.Context) (int, error) {
	ids := map[int64]bool{}
	err := b.read(ctx, func(l line) { ids[l.ID] = true }, func(string, int64) {})
	return len(ids), err
}

func (b itemBooks) elsewhere(ctx context.Context, at place, not string) (found bool, err error) {
	err = b.read(ctx, func(l line) {
		found = found || l.at.partition == at.partition && l.at.offset >= at.offset && l.Worker != not
	}, func(string, int64) {})
	return found, err
}

// remove deletes the items, and those of the sink.
func (b itemBooks) remove(ctx context.Context) error {
	all, each := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for _, prefix := range []string{prefix(b.id), fences(b.id) + "/"} {
		for item, err := range b.store.List(ctx, prefix) {
			if err != nil {
				_ = all.Wait()
				return fmt.Errorf("remove the items of %s: %w", b.id, err)
			}
			all.Go(func() error { return b.store.Delete(each, item) })
		}
	}
	if err := all.Wait(); err != nil {
		return fmt.Errorf("remove the items of %s: %w", b.id, err)
	}
	return nil
}
