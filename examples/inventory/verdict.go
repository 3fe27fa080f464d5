package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
)

type entry struct {
	Reservation
	show.Place
	Epoch  int64
	Worker string
}

// books is the final state of the database. ledger goes in the order of the writes.
type books interface {
	ledger(ctx context.Context, each func(entry)) error
	stock(ctx context.Context) (map[string]int64, error)
}

// verdict is the result of one column, from its database and the sent messages alone.
type verdict struct {
	show.Findings
	Units  int64 // of stock, missing or too many, over all items
	Unsung int   // items whose stock does not match the ledger
}

func (v verdict) exact() bool { return v.Exact() && v.Units == 0 && v.Unsung == 0 }

// judge compares books with the messages of seed, whose places are sent.
func judge(ctx context.Context, b books, seed uint64, items int, sent []show.Place) (verdict, error) {
	audit := show.NewAudit(sent)
	deducted := make(map[string]int64, items)
	err := b.ledger(ctx, func(e entry) {
		deducted[e.Item] += e.Quantity
		effect := show.Effect{Message: int(e.ID), Place: e.Place, Epoch: e.Epoch}
		if e.ID < 0 || e.ID >= int64(len(sent)) || e.Reservation != reservation(seed, int(e.ID), items) {
			effect.Message = -1 // of no sent reservation
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

type column struct {
	name  string
	tally show.Tally
	verdict
}

func writeTable(b *show.Board, columns []*show.Column) {
	var cs []column
	late := false
	for _, c := range columns {
		cs = append(cs, column{c.Name, c.Crew.Tally(), c.Play.(*side).verdict})
		late = late || c.Name == show.Baseline && c.Crew.Tally().Late > 0
	}
	row := func(label string, cell func(column) show.Cell) show.Row { return show.RowOf(label, cs, cell) }
	rows := []show.Row{
		row("messages sent", func(c column) show.Cell { return show.Number(c.Sent) }),
		row("effects applied", func(c column) show.Cell { return show.Number(c.Effects) }),
		row("  doubled", func(c column) show.Cell { return show.None(c.Doubled) }),
		row("  lost", func(c column) show.Cell { return show.None(c.Lost) }),
		row("  out of order", func(c column) show.Cell { return show.None(c.Disorder) }),
		row("  of no message sent", func(c column) show.Cell { return show.None(c.Alien) }),
		row("  epoch lower than before", func(c column) show.Cell {
			if c.name == show.Baseline {
				return show.Cell{Text: "-"}
			}
			return show.None(c.Regressed)
		}),
		row("stock conserved", func(c column) show.Cell {
			return show.Yes(c.Units == 0, fmt.Sprintf("no, %s units off", show.Thousands(int(c.Units))))
		}),
		row("stock and ledger agree", func(c column) show.Cell {
			return show.Yes(c.Unsung == 0, fmt.Sprintf("no, for %s items", show.Thousands(c.Unsung)))
		}),
		row("commits refused as stale", func(c column) show.Cell {
			if c.name == show.Baseline && c.tally.Late > 0 {
				return show.Cell{Text: fmt.Sprintf("%d, too late *", c.tally.Late)}
			}
			return show.Number(c.tally.Stale)
		}),
		row("transactions cut off", func(c column) show.Cell { return show.Number(c.tally.Ended) }),
		row("partitions taken over", func(c column) show.Cell { return show.Number(len(c.tally.Takeovers)) }),
		row("  after, median and most", func(c column) show.Cell { return show.Spread(c.tally.Takeovers) }),
	}
	b.Columns(columns, rows)
	b.Print("")
	if late {
		b.Print("* the offsets were refused; the effects had been committed before")
	}
	b.Print("Judged from the tables alone, after all workers had ended.")
}
