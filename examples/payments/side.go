package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// side is one column. Its stream, and its group's bucket or consumer, have the column's ID as their
// name.
type side struct {
	*payments
	column  *show.Column
	gateway *http.Server
	url     string         // of the gateway
	charges *show.Database // the gateway's
	sent    []int64        // the sequence of each message
	verdict verdict
}

func (p *payments) Side(c *show.Column) show.Side {
	return &side{payments: p, column: c, sent: make([]int64, p.Messages)}
}

func (sd *side) Config(worker string) any {
	return config{
		Worker: worker, NATS: sd.nats, Stream: sd.column.ID, Transform: transform(sd.column.ID, sd.Partitions),
		Group: sd.column.ID, Lease: sd.lease, Gateway: sd.url, Timeout: sd.timeout,
	}
}

func (sd *side) Prepare(ctx context.Context) error {
	if err := makeTables(ctx, sd.column); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if err := createStream(ctx, sd.js, sd.column.ID, sd.Partitions, sd.replicas); err != nil {
		return err
	}
	if err := sd.openGateway(ctx); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

func (sd *side) openGateway(ctx context.Context) (err error) {
	if sd.charges, err = show.NewDatabase(ctx, &show.Settings{Dir: sd.Dir}, sd.column.ID+"-gateway"); err != nil {
		return err
	}
	handler, err := gateway(ctx, sd.charges, sd.column.Name == show.Fence, sd.silentEvery())
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	sd.gateway, sd.url = show.Serve(l, handler), "http://"+l.Addr().String()
	return nil
}

func (sd *side) Play(ctx context.Context) error {
	return sd.Load.Play(ctx, sd.column, sd.send, sd.applied)
}

const ledgerTable = `
CREATE TABLE payments (
	seq              %s,
	payment          BIGINT  NOT NULL,
	account          TEXT    NOT NULL,
	cents            BIGINT  NOT NULL,
	charge           BIGINT, -- NULL until the gateway has answered
	stream_partition INTEGER, -- NULL in the baseline
	stream_sequence  BIGINT  NOT NULL,
	epoch            BIGINT,  -- NULL in the baseline
	worker           TEXT    NOT NULL
);
CREATE INDEX payments_payment ON payments (payment);`

// makeTables makes the tables of a column, and what its status page shows.
func makeTables(ctx context.Context, c *show.Column) (err error) {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	var creating, operating error
	db := c.DB
	_, creating = db.ExecContext(ctx, fmt.Sprintf(ledgerTable, db.Counter()))
	if db.Pool == nil {
		err = sqlsink.Migrate(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
		c.Page.Operator, operating = sqlsink.OpenOperator(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
	} else {
		err = pgsink.Migrate(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
		c.Page.Operator, operating = pgsink.OpenOperator(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
	}
	return errors.Join(creating, err, operating)
}

func (sd *side) send(ctx context.Context, from, to int) error {
	return send(ctx, sd.js, sd.column.ID, sd.sent[from:to], func(i int) Payment { return payment(sd.Seed, from+i, sd.accounts()) })
}

func (sd *side) applied(ctx context.Context) (int, error) {
	return sd.column.DB.Count(ctx, `SELECT count(DISTINCT payment) FROM payments WHERE charge IS NOT NULL`)
}

func (sd *side) Elsewhere(ctx context.Context, subject string, _ show.Point, worker string) (bool, error) {
	// The owner of a partition records charges of payments that the previous owner has written.
	where, args := `payment = $1 AND charge IS NOT NULL`, []any{strings.TrimPrefix(subject, "payment-")}
	if partition, sequence, ok := show.Position(subject); ok {
		where, args = `stream_partition = $1 AND stream_sequence >= $2 AND worker <> $3`, []any{partition, sequence, worker}
	} else if sd.column.Name == show.Baseline {
		where, args = `payment = $1 AND worker <> $2`, append(args, worker)
	}
	found, err := sd.column.DB.Count(ctx, `SELECT count(*) FROM payments WHERE `+where, args...)
	return found > 0, err
}

func (sd *side) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	closing, cancel := context.WithTimeout(ctx, gatewayGrace)
	defer cancel()
	if err := sd.gateway.Shutdown(closing); err != nil {
		return false, nil, fmt.Errorf("gateway: %w", err)
	}
	sd.verdict, err = judge(ctx, sd.column.DB, sd.charges, sd.Seed, sd.accounts(), sd.sent)
	rows = append(sd.verdict.rows(), show.Number("refused by the gateway", sd.column.Crew.Outcomes(show.Refused)))
	return sd.verdict.exact(sd.column.Name == show.Fence), rows, err
}

func (sd *side) Close() error {
	if sd.gateway != nil {
		_ = sd.gateway.Close()
	}
	return errors.Join(sd.charges.Drop(), removeStream(sd.js, sd.column.ID))
}

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
