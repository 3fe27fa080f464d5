package stock

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

// judge compares the books with the messages of seed, whose places are sent.
func judge(ctx context.Context, b books, seed uint64, items int, sent []place) (v verdict, err error) {
	audit, deducted, present := show.NewAudit(len(sent)), make(map[string]int64, items), map[string]int64{}
	err = b.read(ctx, func(l line) {
		deducted[l.Item] += l.Quantity
		effect := show.Effect{Message: int(l.ID), Group: l.group, Offset: l.at.offset, Epoch: l.Epoch}
		if l.ID < 0 || l.ID >= int64(len(sent)) || l.Reservation != reservation(seed, int(l.ID), items) || l.at != sent[l.ID] {
			effect.Message = -1
		}
		audit.Add(effect)
	}, func(item string, n int64) { present[item] = n })
	if err != nil {
		return v, fmt.Errorf("read the stock: %w", err)
	}
	reserved := make(map[string]int64, items)
	for i := range sent {
		r := reservation(seed, i, items)
		reserved[r.Item] += r.Quantity
	}
	v.Findings = audit.Findings
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
	rows := append([]show.Row{show.Number("messages sent", v.Sent)}, v.Rows("effects applied")...)
	return append(rows,
		show.Holds("stock conserved", v.Units == 0, show.Thousands(int(v.Units))+" units off"),
		show.Holds("stock and ledger agree", v.Unsung == 0, "for "+show.Thousands(v.Unsung)+" items"))
}
