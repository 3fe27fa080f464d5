package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// books are where a column keeps its stock, with a line for each reservation that was deducted.
type books interface {
	// create puts so many items in stock, and makes what the status page shows.
	create(ctx context.Context, items int) error
	// read passes on each line, in the order of the deductions as far as it has one, and then how much
	// of each item is present.
	read(ctx context.Context, each func(line), stock func(item string, present int64)) error
	// applied counts the reservations that have a line.
	applied(ctx context.Context) (int, error)
	// elsewhere reports whether another worker has a line of this place or a later one of its partition.
	elsewhere(ctx context.Context, at place, worker string) (bool, error)
	// remove removes what the show's parent does not remove with the database.
	remove(ctx context.Context) error
}

// line is a deduction.
type line struct {
	Reservation
	Epoch  int64
	Worker string
	at     place
	group  string // within which lines are in order: a partition, or an item and a partition
}

type sqlBooks struct{ *show.Column }

const tables = `
CREATE TABLE stock (item TEXT PRIMARY KEY, present BIGINT NOT NULL);
CREATE TABLE ledger (
	seq             %s,
	reservation     BIGINT  NOT NULL,
	item            TEXT    NOT NULL,
	quantity        BIGINT  NOT NULL,
	kafka_partition INTEGER NOT NULL,
	kafka_offset    BIGINT  NOT NULL,
	epoch           BIGINT  NOT NULL,
	worker          TEXT    NOT NULL
);
INSERT INTO stock (item, present) VALUES %s`

func (b sqlBooks) create(ctx context.Context, items int) (err error) {
	stock := make([]string, items)
	for n := range stock {
		stock[n] = fmt.Sprintf("('%s', %d)", itemName(n), initial)
	}
	if _, err := b.DB.ExecContext(ctx, fmt.Sprintf(tables, b.DB.Counter(), strings.Join(stock, ", "))); err != nil {
		return err
	}
	var migrating error
	if b.DB.Pool != nil {
		o := pgsink.Options{Schema: b.DB.Schema}
		migrating = pgsink.Migrate(ctx, b.DB.Pool, o)
		b.Page.Operator, err = pgsink.OpenOperator(ctx, b.DB.Pool, o)
	} else {
		migrating = sqlsink.Migrate(ctx, b.DB.DB, sqlsink.SQLite, sqlsink.Options{})
		b.Page.Operator, err = sqlsink.OpenOperator(ctx, b.DB.DB, sqlsink.SQLite, sqlsink.Options{})
	}
	return errors.Join(migrating, err)
}

func (b sqlBooks) read(ctx context.Context, each func(line), stock func(string, int64)) error {
	const ledger = `SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch, CAST(kafka_partition AS TEXT) FROM ledger ORDER BY seq`
	err := b.DB.Each(ctx, ledger, func(scan show.Scan) error {
		var l line
		err := scan(&l.ID, &l.Item, &l.Quantity, &l.at.partition, &l.at.offset, &l.Epoch, &l.group)
		each(l)
		return err
	})
	if err != nil {
		return err
	}
	return b.DB.Each(ctx, `SELECT item, present FROM stock`, func(scan show.Scan) error {
		var (
			item string
			n    int64
		)
		err := scan(&item, &n)
		stock(item, n)
		return err
	})
}

func (b sqlBooks) applied(ctx context.Context) (int, error) {
	return b.DB.Count(ctx, `SELECT count(DISTINCT reservation) FROM ledger`)
}

func (b sqlBooks) elsewhere(ctx context.Context, at place, worker string) (bool, error) {
	found, err := b.DB.Count(ctx, `SELECT count(*) FROM ledger WHERE kafka_partition = $1 AND kafka_offset >= $2 AND worker <> $3`,
		at.partition, at.offset, worker)
	return found > 0, err
}

func (b sqlBooks) remove(context.Context) error { return nil }

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
