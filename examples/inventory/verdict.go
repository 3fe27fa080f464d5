package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
)

type entry struct {
	Reservation
	place
	epoch int64
}

// books are the tables of a column.
type books struct{ *show.Database }

// ledger calls each for every line of the ledger, in the order of the writes.
func (b books) ledger(ctx context.Context, each func(entry)) error {
	const query = `SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch FROM ledger ORDER BY seq`
	return b.Each(ctx, query, func(scan show.Scan) error {
		var e entry
		err := scan(&e.ID, &e.Item, &e.Quantity, &e.partition, &e.offset, &e.epoch)
		each(e)
		return err
	})
}

func (b books) stock(ctx context.Context) (map[string]int64, error) {
	present := map[string]int64{}
	return present, b.Each(ctx, `SELECT item, present FROM stock`, func(scan show.Scan) error {
		var (
			item string
			n    int64
		)
		err := scan(&item, &n)
		present[item] = n
		return err
	})
}

// verdict is the result of one column, from its database and the sent messages alone.
type verdict struct {
	show.Findings
	Units  int64 // of stock, missing or too many, over all items
	Unsung int   // items whose stock does not match the ledger
}

func (v verdict) exact() bool { return v.Exact() && v.Units == 0 && v.Unsung == 0 }

// judge compares the tables with the messages of seed, whose places are sent.
func judge(ctx context.Context, b books, seed uint64, items int, sent []place) (verdict, error) {
	audit, deducted := show.NewAudit(len(sent)), make(map[string]int64, items)
	err := b.ledger(ctx, func(e entry) {
		deducted[e.Item] += e.Quantity
		effect := show.Effect{Message: int(e.ID), Group: e.partition, Offset: e.offset, Epoch: e.epoch}
		if e.ID < 0 || e.ID >= int64(len(sent)) || e.Reservation != reservation(seed, int(e.ID), items) || e.place != sent[e.ID] {
			effect.Message = -1
		}
		audit.Add(effect)
	})
	if err != nil {
		return verdict{}, fmt.Errorf("read the ledger: %w", err)
	}
	present, err := b.stock(ctx)
	if err != nil {
		return verdict{}, fmt.Errorf("read the stock: %w", err)
	}
	reserved := make(map[string]int64, items)
	for i := range sent {
		r := reservation(seed, i, items)
		reserved[r.Item] += r.Quantity
	}
	v := verdict{Findings: audit.Findings()}
	for n := range items {
		item := itemName(n)
		v.Units += max(initial-reserved[item]-present[item], present[item]-initial+reserved[item])
		if present[item] != initial-deducted[item] {
			v.Unsung++
		}
	}
	return v, nil
}

func (v verdict) rows() []show.Row {
	rows := append([]show.Row{{Label: "messages sent", Value: show.Thousands(v.Sent)}}, v.Rows("effects applied")...)
	return append(rows,
		show.Row{Label: "stock conserved", Value: show.Yes(v.Units == 0, fmt.Sprintf("no, %s units off", show.Thousands(int(v.Units))))},
		show.Row{Label: "stock and ledger agree", Value: show.Yes(v.Unsung == 0, fmt.Sprintf("no, for %s items", show.Thousands(v.Unsung)))},
	)
}
