package main

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
)

// verdict is the result of one column, from its ledger, its gateway and the sent messages alone.
type verdict struct {
	Ledger  show.Findings // in the order of each partition, or in the baseline of each account
	Charges show.Findings // in the order of each account

	Overpaid int64 // cents charged beyond the requests
	Crossed  int   // lines without a matching charge
}

// exact reports whether each payment was written and charged exactly once, to the cent. If ordered,
// it also requires order, and epochs that never fall.
func (v verdict) exact(ordered bool) bool {
	return v.Ledger.Once() && v.Charges.Once() && v.Overpaid == 0 && v.Crossed == 0 &&
		(!ordered || v.Ledger.Exact() && v.Charges.Exact())
}

// judge compares ledger and charges with the payments of seed, whose sequences are sent, and with
// each other.
func judge(ctx context.Context, ledger, charges *show.Database, seed uint64, accounts int, sent []int64) (v verdict, err error) {
	known := func(p Payment) bool {
		return p.ID >= 0 && p.ID < int64(len(sent)) && p == payment(seed, int(p.ID), accounts)
	}

	made := map[int64]int64{} // the payment of each charge
	var paid, asked int64     // cents
	for i := range sent {
		asked += payment(seed, i, accounts).Cents
	}
	audit := show.NewAudit(len(sent))
	err = charges.Each(ctx, `SELECT charge, payment, account, cents, COALESCE(epoch, 0) FROM charges ORDER BY charge`, func(scan show.Scan) error {
		var (
			p             Payment
			charge, epoch int64
		)
		err := scan(&charge, &p.ID, &p.Account, &p.Cents, &epoch)
		made[charge] = p.ID
		paid += p.Cents
		if known(p) {
			audit.Add(show.Effect{Message: int(p.ID), Group: p.Account, Offset: sent[p.ID], Epoch: epoch})
		} else {
			audit.Add(show.Effect{Message: -1})
		}
		return err
	})
	if err != nil {
		return v, fmt.Errorf("read the gateway's charges: %w", err)
	}
	v.Charges = audit.Findings
	v.Overpaid = max(0, paid-asked)

	audit = show.NewAudit(len(sent))
	const lines = `SELECT payment, account, cents, COALESCE(charge, 0), COALESCE(CAST(stream_partition AS TEXT), account), stream_sequence, COALESCE(epoch, 0) FROM payments ORDER BY seq`
	err = ledger.Each(ctx, lines, func(scan show.Scan) error {
		var (
			p      Payment
			charge int64
			e      show.Effect
		)
		err := scan(&p.ID, &p.Account, &p.Cents, &charge, &e.Group, &e.Offset, &e.Epoch)
		if e.Message = int(p.ID); !known(p) || e.Offset != sent[p.ID] {
			e.Message = -1
		}
		audit.Add(e)
		if by, ok := made[charge]; !ok || by != p.ID {
			v.Crossed++
		}
		return err
	})
	if err != nil {
		return v, fmt.Errorf("read the ledger: %w", err)
	}
	v.Ledger = audit.Findings
	return v, nil
}

func (v verdict) rows() []show.Row {
	rows := []show.Row{show.Number("payments asked for", v.Ledger.Sent)}
	rows = append(rows, v.Ledger.Rows("lines in the ledger")...)
	rows = append(rows, v.Charges.Rows("charges by the gateway")...)
	return append(rows,
		show.Row{Label: "charged too much", Value: fmt.Sprintf("$%s.%02d", show.Thousands(int(v.Overpaid/100)), v.Overpaid%100)},
		show.Holds("ledger and gateway agree", v.Crossed == 0, "for "+show.Thousands(v.Crossed)+" lines"))
}
