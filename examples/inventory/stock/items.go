package stock

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// itemBooks are the items of a column, whose keys begin with its ID.
type itemBooks struct {
	store cas.Store
	*show.Column
}

func (b itemBooks) create(ctx context.Context, items int) error {
	value, err := json.Marshal(record{Present: initial})
	if err != nil {
		return err
	}
	for n := range items {
		if _, err := b.store.Swap(ctx, cas.Item{Key: prefix(b.ID) + itemName(n)}, value, nil); err != nil {
			return err
		}
	}
	sink, err := cassink.Open(ctx, b.store, cassink.Options{Prefix: fences(b.ID)})
	if err != nil {
		return err
	}
	b.Page.Operator = sink.Operator()
	return nil
}

func (b itemBooks) read(ctx context.Context, each func(line), stock func(string, int64)) error {
	for item, err := range b.store.List(ctx, prefix(b.ID)) {
		if err != nil {
			return err
		}
		var r record
		if err := json.Unmarshal(item.Value, &r); err != nil {
			return err
		}
		name := strings.TrimPrefix(item.Key, prefix(b.ID))
		for _, e := range r.Ledger {
			each(line{Reservation{e.ID, name, e.Quantity}, e.Epoch, e.Worker, place{e.Partition, e.Offset}, fmt.Sprintf("%s/%d", name, e.Partition)})
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

func (b itemBooks) elsewhere(ctx context.Context, at place, worker string) (found bool, err error) {
	err = b.read(ctx, func(l line) {
		found = found || l.at.partition == at.partition && l.at.offset >= at.offset && l.Worker != worker
	}, func(string, int64) {})
	return found, err
}

// remove deletes the items, and those of the sink.
func (b itemBooks) remove(ctx context.Context) error {
	for _, prefix := range []string{prefix(b.ID), fences(b.ID) + "/"} {
		if err := stores.Remove(ctx, b.store, prefix); err != nil {
			return err
		}
	}
	return nil
}
