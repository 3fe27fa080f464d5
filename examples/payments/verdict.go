package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/internal/show"
)

type line struct {
	Payment
	show.Place
	Charge int64 // its number at the gateway; 0 if the ledger has none
	Epoch  int64
}

type charge struct {
	Payment
	Number int64
	Epoch  int64 // 0 without an epoch
}

type ledger interface {
	lines(ctx context.Context, each func(line)) error
}

type account interface {
	charges(ctx context.Context, each func(charge)) error
	notes(ctx context.Context) (map[string]int, error)
}

// verdict is the result of one column, from its ledger, its gateway and the sent messages alone.
type verdict struct {
	Ledger  show.Findings // in the order of each partition
	Charges show.Findings // in the order of each account

	Unequal  int   // accounts whose requests, ledger and charges have different sums
	Overpaid int64 // cents charged beyond the requests
	Unpaid   int64 // cents requested and not charged
	Crossed  int   // lines without a matching charge

	Refused    int // requests with a stale epoch, by the gateway's notes
	Replayed   int // requests answered from the stored answer
	Unanswered int // charges that got no answer at first
}

// exact reports whether each payment was written and charged exactly once, to the cent. If ordered,
// it also requires order, and epochs that never fall.
func (v verdict) exact(ordered bool) bool {
	for _, f := range []show.Findings{v.Ledger, v.Charges} {
		if f.Doubled+f.Lost+f.Alien > 0 || ordered && !f.Exact() {
			return false
		}
	}
	return v.Unequal == 0 && v.Crossed == 0
}

type sums struct{ asked, written, charged int64 }

// judge compares ledger and gateway with the payments of seed, whose places are sent, and with each
// other.
func judge(ctx context.Context, l ledger, g account, seed uint64, accounts int, sent []show.Place) (v verdict, err error) {
	byAccount := make([]show.Place, len(sent)) // the place that a charge should have
	number := make(map[string]int32, accounts)
	total := make(map[string]*sums, accounts)
	of := func(name string) *sums {
		if total[name] == nil {
			total[name] = &sums{}
		}
		return total[name]
	}
	for n := range accounts {
		number[accountName(n)] = int32(n)
	}
	for i := range sent {
		p := payment(seed, i, accounts)
		byAccount[i] = show.Place{Partition: number[p.Account], Offset: sent[i].Offset}
		of(p.Account).asked += p.Cents
	}
	known := func(p Payment) int {
		if p.ID < 0 || p.ID >= int64(len(sent)) || p != payment(seed, int(p.ID), accounts) {
			return -1
		}
		return int(p.ID)
	}

	charges, made := show.NewAudit(byAccount), map[int64]int64{}
	err = g.charges(ctx, func(c charge) {
		effect := show.Effect{Message: known(c.Payment), Epoch: c.Epoch}
		if effect.Message >= 0 {
			effect.Place = byAccount[effect.Message]
		}
		charges.Add(effect)
		made[c.Number] = c.ID
		of(c.Account).charged += c.Cents
	})
	if err != nil {
		return v, fmt.Errorf("read the gateway's charges: %w", err)
	}
	lines := show.NewAudit(sent)
	err = l.lines(ctx, func(l line) {
		lines.Add(show.Effect{Message: known(l.Payment), Place: l.Place, Epoch: l.Epoch})
		if by, ok := made[l.Charge]; !ok || by != l.ID {
			v.Crossed++
		}
		of(l.Account).written += l.Cents
	})
	if err != nil {
		return v, fmt.Errorf("read the ledger: %w", err)
	}
	notes, err := g.notes(ctx)
	if err != nil {
		return v, fmt.Errorf("read the gateway's notes: %w", err)
	}
	v.Ledger, v.Charges = lines.Findings(), charges.Findings()
	v.Refused, v.Replayed, v.Unanswered = notes[httpfence.Stale.String()], notes[httpfence.Replayed.String()], notes[notAnswered]
	for _, s := range total {
		if s.asked != s.written || s.asked != s.charged {
			v.Unequal++
		}
		v.Overpaid += max(0, s.charged-s.asked)
		v.Unpaid += max(0, s.asked-s.charged)
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
	for _, c := range columns {
		cs = append(cs, column{c.Name, c.Crew.Tally(), c.Play.(*side).verdict})
	}
	row := func(label string, cell func(column) show.Cell) show.Row { return show.RowOf(label, cs, cell) }
	// The baseline promises no order and has no epochs.
	ours := func(cell func(column) show.Cell) func(column) show.Cell {
		return func(c column) show.Cell {
			if c.name == show.Baseline {
				return show.Cell{Text: "-"}
			}
			return cell(c)
		}
	}
	b.Columns(columns, []show.Row{
		row("payments asked for", func(c column) show.Cell { return show.Number(c.Ledger.Sent) }),
		row("lines in the ledger", func(c column) show.Cell { return show.Number(c.Ledger.Effects) }),
		row("  payments written again", func(c column) show.Cell { return show.None(c.Ledger.Doubled) }),
		row("  payments missing", func(c column) show.Cell { return show.None(c.Ledger.Lost) }),
		row("  lines nobody asked for", func(c column) show.Cell { return show.None(c.Ledger.Alien) }),
		row("  out of order", ours(func(c column) show.Cell { return show.None(c.Ledger.Disorder) })),
		row("  epoch lower than before", ours(func(c column) show.Cell { return show.None(c.Ledger.Regressed) })),
		row("charges by the gateway", func(c column) show.Cell { return show.Number(c.Charges.Effects) }),
		row("  payments charged again", func(c column) show.Cell { return show.None(c.Charges.Doubled) }),
		row("  payments not charged", func(c column) show.Cell { return show.None(c.Charges.Lost) }),
		row("  charges nobody asked for", func(c column) show.Cell { return show.None(c.Charges.Alien) }),
		row("  out of order in an account", ours(func(c column) show.Cell { return show.None(c.Charges.Disorder) })),
		row("  epoch lower than before", ours(func(c column) show.Cell { return show.None(c.Charges.Regressed) })),
		row("charged too much", func(c column) show.Cell { return money(c.Overpaid) }),
		row("charged too little", func(c column) show.Cell { return money(c.Unpaid) }),
		row("ledger and gateway agree", func(c column) show.Cell {
			return show.Yes(c.Unequal == 0 && c.Crossed == 0, fmt.Sprintf("no, for %s accounts", show.Thousands(max(c.Unequal, c.Crossed))))
		}),
		row("charged without an answer", func(c column) show.Cell { return show.Number(c.Unanswered) }),
		row("requests answered again", ours(func(c column) show.Cell { return show.Number(c.Replayed) })),
		row("stale: refused by the gateway", ours(func(c column) show.Cell { return show.Number(c.Refused) })),
		row("stale: refused by the ledger", ours(func(c column) show.Cell { return show.Number(c.tally.Stale) })),
		row("transactions cut off", ours(func(c column) show.Cell { return show.Number(c.tally.Ended) })),
		row("taken over, times", func(c column) show.Cell { return show.Number(len(c.tally.Takeovers)) }),
		row("  after, median and most", func(c column) show.Cell { return show.Spread(c.tally.Takeovers) }),
	})
	b.Print("")
	b.Print("Judged from the tables of ledger and gateway alone, after all had ended.")
}

// money is a cell for an amount that should be zero.
func money(cents int64) show.Cell {
	c := show.Cell{Text: fmt.Sprintf("$%s.%02d", show.Thousands(int(cents/100)), cents%100), Mood: show.Good}
	if cents != 0 {
		c.Mood = show.Bad
	}
	return c
}
