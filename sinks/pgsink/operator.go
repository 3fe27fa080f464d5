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
	sink *Sink
	sql  operatorStatements
}

var _ operate.Operator = (*Operator)(nil)

type operatorStatements struct {
	list, processes            string
	act, history               string
	letters, letter, letterAct string
	protections                string
}

// OpenOperator returns an operator of the schema, after the checks of [Open]. The role needs the
// privileges of [GrantReaderSQL] to read, and those of [GrantOperatorSQL] to act. Only the options
// Schema, ClaimTimeout, CallTimeout, StartTimeout and Logger matter.
func OpenOperator(ctx context.Context, pool *pgxpool.Pool, o Options) (*Operator, error) {
	s, err := open(ctx, pool, o, readerFunctions)
	if err != nil {
		return nil, err
	}
	in := pgschema.Quote(s.options.Schema) + "."
	const (
		listColumns   = "id, group_name, topic, partition, message_offset, epoch, message_seconds, message_nanos, error, failed_at, request, requested, requested_by, requested_at, replay_error, replay_failed_at"
		letterColumns = listColumns + ", key, value, header_keys, header_values"
	)
	return &Operator{sink: s, sql: operatorStatements{
		list: "select (f).group_name, (f).topic, (f).partition, (f).log_id, (f).lease_source, (f).lease_generation, (f).owner, (f).epoch, " +
			"(f).claim_id::text, (f).next_offset, (f).mark, (f).applied, (f).set_under, (f).mode, (f).mode_by, (f).mode_reason, (f).mode_at, " +
			"(f).claimed_at, (f).advanced_at, read_at, dead_letters from " + in + "list_fences($1::text, $2::text, $3::int, $4::boolean)",
		processes: "select run, group_name, name, host, pid, version, problems, every_ms, since, seen_at, read_at from " + in + "list_processes($1::text)",
		act: "select " + fenceColumns + " from " + in + "act($1::text, $2::text, $3::text, $4::int, $5::int, $6::bigint, $7::text::uuid, $8::bigint, " +
			"$9::text::uuid, $10::text, $11::text, $12::text, $13::bigint, $14::bigint, $15::boolean, $16::text, $17::text)",
		history: "select " + decisionColumns + " from " +
			in + "read_decisions($1::text, $2::text, $3::int, $4::text::uuid, $5::text[], $6::bigint, $7::timestamptz, $8::bigint)",
		letters:   "select " + listColumns + " from " + in + "list_dead_letters($1::text, $2::text, $3::int, $4::boolean, $5::bigint, $6::bigint)",
		letter:    "select " + letterColumns + " from " + in + "show_dead_letter($1::bigint)",
		letterAct: "select " + letterColumns + " from " + in + "act_on_dead_letter($1::text, $2::bigint, $3::bigint, $4::boolean, $5::text, $6::text, $7::text)",
		protections: "select table_schema, table_name, p.mode, coalesce(p.roles, '{}'), coalesce(p.enabled, false), " +
			"w.role, w.transactions, w.first_at, w.last_at, w.application, w.read_at " +
			"from " + in + "protections() p full join " + in + "outside_writes() w using (table_schema, table_name) order by 1, 2, w.role",
	}}, nil
}

// operated is [collect] for an operator.
func operated[T any](ctx context.Context, o *Operator, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := o.sink.bounded(ctx)
	defer cancel()
	found, err := collect(ctx, o.sink, scan, sql, args...)
	return found, ours(ended(ctx, explain(err)))
}

// Partitions implements [operate.Operator].
func (o *Operator) Partitions(ctx context.Context, f operate.Filter) ([]operate.Partition, error) {
	found, err := operated(ctx, o, scanPartition, o.sql.list, orNil(f.Group), orNil(f.Topic), nil, f.Paused)
	if err != nil {
		return nil, fmt.Errorf("pgsink: list fences: %w", err)
	}
	return found, nil
}

// Partition implements [operate.Operator].
func (o *Operator) Partition(ctx context.Context, p epoch.Partition) (operate.Partition, error) {
	found, err := operated(ctx, o, scanPartition, o.sql.list, p.Group, p.Topic, p.Number, false)
	if err == nil && len(found) == 0 {
		err = &epoch.MissingError{Partition: p}
	}
	if err != nil {
		return operate.Partition{}, fmt.Errorf("pgsink: read fence %s: %w", p, err)
	}
	return found[0], nil
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

// Act implements [operate.Operator]. It ends open transactions of the claim that it replaces, if
// its role is a member of the application's role and so may end its connections.
func (o *Operator) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	if err := a.Check(); err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: %w", err)
	}
	if err := checkOrigin(epoch.Origin{Partition: a.Partition, Log: a.Log, Source: a.Source}); err != nil {
		return epoch.Fence{}, err
	}
	ctx, cancel := o.sink.bounded(ctx)
	defer cancel()
	f, err := o.act(ctx, a)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: %s %s: %w", a.Kind, a.Partition, ours(ended(ctx, explain(err))))
	}
	return f, nil
}

func (o *Operator) act(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	for range claimTries {
		if f, err = o.swap(ctx, a); !isLockTimeout(err) {
			break
		}
		// A transaction that is frozen holds the row. Other transactions are left alone until the
		// action is done, because it may be refused.
		o.sink.evict(ctx, a.Seen.Claim)
	}
	var pg *pgconn.PgError
	switch {
	case err == nil:
		o.sink.evict(ctx, a.Seen.Claim)
		return f, nil
	case isLockTimeout(err):
		return f, fmt.Errorf("another transaction holds the fence for longer than %v, and this role could not end it; "+
			"make it a member of the application's role: %w", o.sink.options.ClaimTimeout, err)
	case errors.As(err, &pg) && !fatal(err):
		return f, refusedAct(pg, a)
	default:
		return f, inDoubt(err)
	}
}

func (o *Operator) swap(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	var to, mark *int64
	if a.To != nil {
		to, mark = (*int64)(&a.To.Offset), (*int64)(&a.To.Mark)
	}
	p := a.Partition
	err = o.sink.transact(ctx, harmful, func(b *pgx.Batch) {
		b.Queue(o.sql.act, string(a.Kind), p.Group, p.Topic, p.Number, ms(o.sink.options.ClaimTimeout/claimTries),
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

// History implements [operate.Operator].
func (o *Operator) History(ctx context.Context, q operate.HistoryQuery) ([]operate.Decision, error) {
	var (
		group, topic, claim *string
		number              *int32
		kinds               []string
		before              *int64
		until               *time.Time
	)
	if p := q.Partition; p != nil {
		group, topic, number = &p.Group, &p.Topic, &p.Number
	}
	if q.Claim != (epoch.ClaimID{}) {
		claim = new(string)
		*claim = q.Claim.String()
	}
	for _, k := range q.Kinds {
		kinds = append(kinds, string(k))
	}
	if q.Before > 0 {
		before = &q.Before
	}
	if !q.Until.IsZero() {
		until = &q.Until
	}
	found, err := operated(ctx, o, scanDecision, o.sql.history, group, topic, number, claim, kinds, before, until, int64(operate.Limit(q.Limit)))
	if err != nil {
		return nil, fmt.Errorf("pgsink: read the audit log: %w", err)
	}
	return found, nil
}

// Protected returns the protected tables in the order of their names. It needs the privileges of
// [GrantReaderSQL].
func (o *Operator) Protected(ctx context.Context) ([]Protected, error) {
	rows, err := operated(ctx, o, scanProtected, o.sql.protections)
	if err != nil {
		return nil, fmt.Errorf("pgsink: list protected tables: %w", err)
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
