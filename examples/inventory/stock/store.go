package stock

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// record is the value of an item.
type record struct {
	Present int64   `json:"present"`
	Ledger  []entry `json:"ledger"`
}

// entry is a reservation that was deducted from an item.
type entry struct {
	ID        int64  `json:"id"`
	Quantity  int64  `json:"quantity"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Epoch     int64  `json:"epoch"`
	Worker    string `json:"worker"`
}

// deduct returns the value of an item without the quantity of a reservation.
func deduct(value []byte, exists bool, r Reservation, m consumer.Message, e epoch.Epoch, worker string) ([]byte, error) {
	if !exists {
		return nil, unknown(r.Item)
	}
	var item record
	if err := json.Unmarshal(value, &item); err != nil {
		return nil, err
	}
	item.Present -= r.Quantity
	item.Ledger = append(item.Ledger, entry{r.ID, r.Quantity, m.Partition.Number, int64(m.Offset), int64(e), worker})
	return json.Marshal(item)
}

// reserveItems deducts consecutive reservations of a partition from items whose keys begin with prefix.
// The items are read side by side, and written so after the handler has returned.
func reserveItems(prefix, worker string) consumer.BatchHandler[*cassink.Tx] {
	return func(ctx context.Context, tx *cassink.Tx, ms []consumer.Message, e epoch.Epoch) error {
		reservations, keys := make([]Reservation, len(ms)), make([]string, len(ms))
		for i, m := range ms {
			r, err := parse(m)
			if err != nil {
				return err
			}
			reservations[i], keys[i] = r, prefix+r.Item
		}
		if err := tx.Load(ctx, keys...); err != nil {
			return err
		}
		for i, m := range ms {
			_, err := tx.Update(ctx, m, keys[i], func(old guard.State) (guard.State, []byte, error) {
				value, err := deduct(old.Value, old.Exists, reservations[i], m, e, worker)
				return guard.State{Exists: true, Value: value}, nil, err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// consumeItems runs the handler on this process's partitions, into a store. To copy it, delete what has
// to do with stage.
func consumeItems(ctx context.Context, c config, store cas.Store, stage *show.Stage) error {
	source, err := kafkasource.New(kafkasource.Options{Group: c.Group, Topics: []string{c.Topic}, Client: c.client()})
	if err != nil {
		return err
	}
	sink, err := cassink.Open(ctx, store, cassink.Options{Prefix: fences(c.Group)})
	if err != nil {
		return err
	}
	o := options(stage)
	o.Guarantee = epoch.PerItem
	return consumer.Run(ctx, source, show.Fenced(sink, stage), consumer.Batches(reserveItems(prefix(c.Group), c.Worker)), o)
}

// baselineItems replaces an item only as it was read, which is all that a careful program does.
func baselineItems(ctx context.Context, c config, store cas.Store, stage *show.Stage) error {
	return consumeAsUsual(ctx, c, stage, func(ctx context.Context, ms []consumer.Message, written func()) error {
		for _, m := range ms {
			if err := replaceItem(ctx, store, prefix(c.Group), m, noEpoch, c.Worker); err != nil {
				return err
			}
		}
		written()
		return nil
	})
}

func replaceItem(ctx context.Context, store cas.Store, prefix string, m consumer.Message, e epoch.Epoch, worker string) error {
	r, err := parse(m)
	if err != nil {
		return err
	}
	for {
		seen, err := store.Get(ctx, prefix+r.Item)
		if err != nil {
			return err
		}
		value, err := deduct(seen.Value, seen.Live, r, m, e, worker)
		if err != nil {
			return err
		}
		if _, err = store.Swap(ctx, seen, value, nil); !errors.Is(err, cas.ErrConflict) {
			return err
		}
	}
}

// prefix begins the keys of a column's items, and fences those of its sink.
func prefix(id string) string { return id + "/" }
func fences(id string) string { return id + "-epochfence" }
