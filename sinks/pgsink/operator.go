package pgsink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file is the operators' side: lists, history, counts of unfenced writes, and actions on fences.
// Package operate decides whether an action makes sense, and the SQL function whether the fence is
// still as it was seen.

// Operator operates the fences of a schema. It is safe for concurrent use. It needs no Close,
// because the caller owns the pool.
type Operator struct {
	operate.Operator
	admin admin
}

var _ operate.Admin = admin{}

// admin is a sink whose role is an operator's.
type admin struct {
	*Sink
	own operatorStatements
}

type operatorStatements struct{ list, act, actOnRow, protections string }

// OpenOperator returns an operator of the schema, after the checks of [Open]. The role needs the
// privileges of [GrantReaderSQL] to read, and those of [GrantOperatorSQL] to act. Only the options
// Schema, ClaimTimeout, CallTimeout, StartTimeout and Logger matter.
func OpenOperator(ctx context.Context, pool *pgxpool.Pool, o Options) (*Operator, error) {
	s, err := open(ctx, pool, o, readerFunctions)
	if err != nil {
		return nil, err
	}
	in := pgschema.Quote(s.options.Schema) + "."
	a := admin{s, operatorStatements{
		list: "select (f).group_name, (f).topic, (f).partition, (f).log_id, (f).lease_source, (f).lease_generation, (f).owner, (f).epoch, " +
			"(f).claim_id::text, (f).next_offset, (f).mark, (f).applied, (f).set_under, (f).mode, (f).mode_by, (f).mode_reason, (f).mode_at, " +
			"(f).claimed_at, (f).advanced_at, read_at, dead_letters from " + in + "list_fences($1::text, $2::text, $3::int, $4::boolean)",
		act: "select " + fenceColumns + " from " + in + "act($1::text, $2::text, $3::text, $4::int, $5::int, $6::bigint, $7::text::uuid, $8::bigint, " +
			"$9::text::uuid, $10::text, $11::text, $12::text, $13::bigint, $14::bigint, $15::boolean, $16::text, $17::text)",
		actOnRow: "select " + in + "act_on_row($1::text, $2::bigint, $3::bigint, $4::boolean, $5::text, $6::text, $7::text, $8::int, " +
			"$9::text, $10::text, $11::text, $12::text, $13::bigint, $14::bigint, $15::text, $16::text, $17::text, $18::text)",
		protections: "select table_schema, table_name, p.mode, coalesce(p.roles, '{}'), coalesce(p.enabled, false), " +
			"w.role, w.transactions, w.first_at, w.last_at, w.application, w.read_at " +
			"from " + in + "protections() p full join " + in + "outside_writes() w using (table_schema, table_name) order by 1, 2, w.role",
	}}
	return &Operator{operate.On(a), a}, nil
}

// Partitions implements [operate.Admin].
func (o admin) Partitions(ctx context.Context, f operate.Filter, p *epoch.Partition) ([]operate.Partition, error) {
	group, topic, number, paused := orNil(f.Group), orNil(f.Topic), (*int32)(nil), f.Paused
	if p != nil {
		group, topic, number, paused = &p.Group, &p.Topic, &p.Number, false
	}
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	found, err := collect(ctx, o.Sink, scanPartition, o.own.list, group, topic, number, paused)
	if err != nil {
		return nil, fmt.Errorf("pgsink: list fences: %w", ours(ended(ctx, explain(err))))
	}
	return found, nil
}

func scanPartition(row pgx.CollectableRow) (p operate.Partition, err error) {
	var (
		of                  fenceRow
		claimedAt, advanced *time.Time
	)
	if err := row.Scan(append(of.into(), &claimedAt, &advanced, &p.Now, &p.DeadLetters)...); err != nil {
		return p, err
	}
	p.ClaimedAt, p.AdvancedAt, p.Now = inUTC(claimedAt), inUTC(advanced), inUTC(&p.Now)
	p.Fence, err = of.fence()
	return p, err
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Act implements [operate.Admin]. It ends open transactions of the claim that it replaces, if
// its role is a member of the application's role and so may end its connections.
func (o admin) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	if err := a.Check(); err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: %w", err)
	}
	if err := checkOrigin(epoch.Origin{Partition: a.Partition, Log: a.Log, Source: a.Source}); err != nil {
		return epoch.Fence{}, err
	}
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	f, err := o.act(ctx, a)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: act: %w", ours(ended(ctx, explain(err))))
	}
	return f, nil
}

func (o admin) act(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	for range claimTries {
		if f, err = o.swap(ctx, a); !isLockTimeout(err) {
			break
		}
		// A transaction that is frozen holds the row. Other transactions are left alone until the
		// action is done, because it may be refused.
		o.evict(ctx, a.Seen.Claim)
	}
	var pg *pgconn.PgError
	switch {
	case err == nil:
		o.evict(ctx, a.Seen.Claim)
		return f, nil
	case isLockTimeout(err):
		return f, fmt.Errorf("another transaction holds the fence for longer than %v, and this role could not end it; "+
			"make it a member of the application's role: %w", o.options.ClaimTimeout, err)
	case errors.As(err, &pg) && !fatal(err):
		return f, refusedAct(pg, a)
	default:
		return f, inDoubt(err)
	}
}

func (o admin) swap(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	var to, mark *int64
	if a.To != nil {
		to, mark = (*int64)(&a.To.Offset), (*int64)(&a.To.Mark)
	}
	p := a.Partition
	err = o.transact(ctx, harmful, func(b *pgx.Batch) {
		b.Queue(o.own.act, string(a.Kind), p.Group, p.Topic, p.Number, ms(o.options.ClaimTimeout/claimTries),
			int64(a.Seen.Epoch), a.Seen.Claim.String(), int64(a.Seen.Next), a.Claim.String(), a.By, a.Reason, a.TraceID,
			to, mark, a.Beginning, orNil(a.Log), orNil(a.Source))
	}, func(r pgx.BatchResults) (err error) {
		var row fenceRow
		f, err = row.scan(r.QueryRow())
		return err
	})
	return f, err
}

// refusedAct returns the meaning of a refusal by the function act.
func refusedAct(pg *pgconn.PgError, a operate.Act) error {
	switch pg.Code {
	case codeMissing:
		return &epoch.MissingError{Partition: a.Partition}
	case codeStale, codeMoved, codeNotFresh, codeNothing, codeExhausted, codeElsewhere:
	default:
		return pg
	}
	f, broken := held(pg)
	if broken != nil {
		return errors.Join(broken, pg)
	}
	if _, refused := a.Apply(f); refused != nil {
		return refused
	}
	return pg
}

// Write implements [operate.Rows]. An operator changes or removes a dead letter or an entry of the outbox,
// with the entry about it in the audit log, and nothing else.
func (o admin) Write(ctx context.Context, cs ...operate.Change) error {
	if len(cs) == 2 && cs[0].Kind == operate.KindEntry {
		cs[0], cs[1] = cs[1], cs[0]
	}
	if len(cs) != 2 || cs[0].ID == 0 || cs[1].Kind != operate.KindEntry {
		return errors.New("pgsink: an operator writes a dead letter or an entry of the outbox, with an entry of the audit log")
	}
	l, e := cs[0], cs[1]
	p := l.Partition
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	err := o.transact(ctx, harmful, func(b *pgx.Batch) {
		b.Queue(o.own.actOnRow, string(l.Kind), l.ID, l.Revision, l.Remove, l.Name, p.Group, p.Topic, p.Number, l.State, l.Text, string(l.Body),
			e.Name, int64(e.Epoch), int64(e.Offset), e.State, e.Text, e.By, string(e.Body))
	}, execOne)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && !fatal(err):
		err = ours(changed(explain(err)))
	default:
		err = inDoubt(ended(ctx, err))
	}
	return fmt.Errorf("pgsink: write %d rows: %w", len(cs), err)
}

// Protected returns the protected tables in the order of their names. It needs the privileges of
// [GrantReaderSQL].
func (o *Operator) Protected(ctx context.Context) ([]Protected, error) {
	ctx, cancel := o.admin.bounded(ctx)
	defer cancel()
	rows, err := collect(ctx, o.admin.Sink, scanProtected, o.admin.own.protections)
	if err != nil {
		return nil, fmt.Errorf("pgsink: list protected tables: %w", ours(ended(ctx, explain(err))))
	}
	var found []Protected // a table has a row for each role that has written to it
	for _, p := range rows {
		if k := len(found) - 1; k >= 0 && found[k].Schema == p.Schema && found[k].Table == p.Table {
			found[k].Outside = append(found[k].Outside, p.Outside...)
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

func scanProtected(row pgx.CollectableRow) (p Protected, err error) {
	var (
		mode, role, app *string
		enabled         bool
		n               *int64
		first, last, at *time.Time
	)
	if err := row.Scan(&p.Schema, &p.Table, &mode, &p.Except, &enabled, &role, &n, &first, &last, &app, &at); err != nil {
		return p, err
	}
	switch {
	case mode == nil:
		p.State = ProtectionGone
	case enabled:
		p.State = ProtectionOn
	default:
		p.State = ProtectionDisabled
	}
	p.Refuse = mode != nil && *mode == "refuse"
	if role != nil {
		p.Outside = []OutsideWrites{{Role: *role, Transactions: *n, First: inUTC(first), Last: inUTC(last), Application: *app, Now: inUTC(at)}}
	}
	return p, nil
}
