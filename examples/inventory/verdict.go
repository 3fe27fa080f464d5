package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
)

// verdict is the result of one column, from its database and the sent messages alone.
type verdict struct {
	show.Findings
	Units  int64 // of stock, missing or too many, over all items
	Unsung int   // items whose stock does not match the ledger
}

func (v verdict) exact() bool { return v.Exact() && v.Units == 0 && v.Unsung == 0 }

// judge compares the tables with the messages of seed, whose places are sent.
func judge(ctx context.Context, db *show.Database, seed uint64, items int, sent []place) (v verdict, err error) {
	audit, deducted := show.NewAudit(len(sent)), make(map[string]int64, items)
	const ledger = `SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch FROM ledger ORDER BY seq`
	err = db.Each(ctx, ledger, func(scan show.Scan) error {
		var (
			r  Reservation
			at place
			e  int64
		)
		err := scan(&r.ID, &r.Item, &r.Quantity, &at.partition, &at.offset, &e)
		deducted[r.Item] += r.Quantity
		effect := show.Effect{Message: int(r.ID), Group: at.partition, Offset: at.offset, Epoch: e}
		if r.ID < 0 || r.ID >= int64(len(sent)) || r != reservation(seed, int(r.ID), items) || at != sent[r.ID] {
			effect.Message = -1
		}
		audit.Add(effect)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("read the ledger: %w", err)
	}
	present := map[string]int64{}
	err = db.Each(ctx, `SELECT item, present FROM stock`, func(scan show.Scan) error {
		var (
			item string
			n    int64
		)
		err := scan(&item, &n)
		present[item] = n
		return err
	})
	if err != nil {
		return v, fmt.Errorf("read the stock: %w", err)
	}
	reserved := make(map[string]int64, items)
	for i := range sent {
		r := reservation(seed, i, items)
		reserved[r.Item] += r.Quantity
	}
	v.Findings = audit.Findings()
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
