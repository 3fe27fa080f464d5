package pgoutbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
)

// This file is the operators' side: entries, actions on them, and their history. Package operate
// decides which action is possible.

// Operator operates the entries of a schema. It is safe for concurrent use if its DB is, such as a
// pool.
type Operator struct {
	db                                         DB
	list, show, retry, discard, record, listed string
}

var _ operate.Outbox = (*Operator)(nil)

// OpenOperator returns an operator of the outbox, after it has checked the version of
// the tables. To list entries, the
// role needs the privileges of [GrantReaderSQL]. For other actions it needs those of
// [GrantOperatorSQL].
func OpenOperator(ctx context.Context, db DB, o Options) (*Operator, error) {
	o, err := checked(ctx, db, o)
	if err != nil {
		return nil, err
	}
	in := pgschema.Quote(o.Schema) + "."
	const (
		head = "id, group_name, topic, partition, order_key, scope, idempotency_key, method, added_at, retry_requested"
		key  = " where id = $1 and group_name = $2 and topic = $3 and partition = $4 and idempotency_key = $5 returning scope"
	)
	return &Operator{
		db: db,
		list: "select " + head + ", receiver from " + in + `outbox_listing where id > $1 and ($2 = '' or group_name = $2) and ($3 = '' or topic = $3)
			and ($4::int is null or partition = $4) and ($5::text is null or order_key = $5) order by id limit $6`,
		show:    "select " + head + ", url, header, body from " + in + "outbox_entry where id = $1",
		retry:   "update " + in + "outbox_entry set retry_requested = true" + key,
		discard: "delete from " + in + "outbox_entry" + key,
		record: "insert into " + in + `outbox_act (kind, entry, group_name, topic, partition, scope, idempotency_key, operator, reason)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		listed: "select acted_at, role, kind, entry, group_name, topic, partition, scope, idempotency_key, operator, reason from " + in + "outbox_act order by id desc limit $1",
	}, nil
}

// in runs do in a transaction. If COMMIT fails, it returns [epoch.ErrInDoubt].
func (o *Operator) in(ctx context.Context, do func(tx pgx.Tx) error) error {
	tx, err := o.db.BeginTx(ctx, pgschema.ReadCommitted)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, pgschema.Texts, pgx.QueryExecModeExec); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: COMMIT: %w", epoch.ErrInDoubt, err)
	}
	return nil
}

func into(e *operate.OutboxEntry) []any {
	p := &e.Partition
	return []any{&e.ID, &p.Group, &p.Topic, &p.Number, &e.Key, &e.Scope, &e.IdempotencyKey, &e.Method, &e.AddedAt, &e.RetryRequested}
}

// Entries implements [operate.Outbox].
func (o *Operator) Entries(ctx context.Context, q operate.OutboxQuery) (found []operate.OutboxEntry, err error) {
	err = o.in(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, o.list, pgx.QueryExecModeExec, q.After, q.Group, q.Topic, q.Number, q.Key, operate.Limit(q.Limit))
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e operate.OutboxEntry, err error) {
			err = row.Scan(append(into(&e), &e.URL)...)
			return e, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgoutbox: list entries: %w", pgschema.Explain(err))
	}
	return found, nil
}

// Entry implements [operate.Outbox].
func (o *Operator) Entry(ctx context.Context, id int64) (e operate.OutboxEntry, err error) {
	err = o.in(ctx, func(tx pgx.Tx) error {
		var header string
		err := tx.QueryRow(ctx, o.show, pgx.QueryExecModeExec, id).Scan(append(into(&e), &e.URL, &header, &e.Body)...)
		if errors.Is(err, pgx.ErrNoRows) {
			return operate.ErrNoOutboxEntry
		}
		if err == nil {
			e.Header, err = outbox.UnmarshalHeader(header)
		}
		return err
	})
	if err != nil {
		return operate.OutboxEntry{}, fmt.Errorf("pgoutbox: read entry %d: %w", id, pgschema.Explain(err))
	}
	return e, nil
}

// DoOutbox implements [operate.Outbox].
func (o *Operator) DoOutbox(ctx context.Context, a operate.OutboxAct) error {
	e, p := a.Seen, a.Seen.Partition
	err := a.Check()
	if err == nil {
		err = o.in(ctx, func(tx pgx.Tx) error {
			sql := map[operate.OutboxKind]string{operate.OutboxRetry: o.retry, operate.OutboxDiscard: o.discard}[a.Kind]
			var scope string
			err := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, e.ID, p.Group, p.Topic, p.Number, e.IdempotencyKey).Scan(&scope)
			if errors.Is(err, pgx.ErrNoRows) {
				return operate.ErrNoOutboxEntry
			}
			if err == nil {
				_, err = tx.Exec(ctx, o.record, pgx.QueryExecModeExec, string(a.Kind), e.ID, p.Group, p.Topic, p.Number, scope, e.IdempotencyKey, a.By, a.Reason)
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("pgoutbox: %s entry %d of %s: %w", a.Kind, e.ID, p, pgschema.Explain(err))
	}
	return nil
}

// OutboxHistory implements [operate.Outbox].
func (o *Operator) OutboxHistory(ctx context.Context, most int) (found []operate.OutboxRecord, err error) {
	err = o.in(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, o.listed, pgx.QueryExecModeExec, operate.Limit(most))
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r operate.OutboxRecord, err error) {
			var at time.Time
			err = row.Scan(&at, &r.Role, &r.Kind, &r.Entry, &r.Partition.Group, &r.Partition.Topic, &r.Partition.Number,
				&r.Scope, &r.IdempotencyKey, &r.By, &r.Reason)
			r.At = at.UTC()
			return r, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgoutbox: read what operators did: %w", pgschema.Explain(err))
	}
	return found, nil
}

// GrantReaderSQL returns the SQL that lets role list entries, without their secrets, and the
// records of operator actions. Run it as the schema's owner.
func GrantReaderSQL(role string, o Options) (string, error) {
	return grants(role, o, "grant usage on schema %[1]s to %[2]s;\n"+
		"grant select on %[1]s.outbox_migration, %[1]s.outbox_listing, %[1]s.outbox_act to %[2]s;\n")
}

// GrantOperatorSQL returns the SQL that lets role call all methods of [Operator]. Run it as the
// schema's owner.
func GrantOperatorSQL(role string, o Options) (string, error) {
	return grants(role, o, "grant usage on schema %[1]s to %[2]s;\n"+
		"grant select on %[1]s.outbox_migration, %[1]s.outbox_listing to %[2]s;\n"+
		"grant select, delete, update (retry_requested) on %[1]s.outbox_entry to %[2]s;\n"+
		"grant select, insert on %[1]s.outbox_act to %[2]s;\n")
}

func grants(role string, o Options, format string) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if err := pgschema.CheckIdentifier("role", role); err != nil {
		return "", fmt.Errorf("pgoutbox: %w", err)
	}
	return fmt.Sprintf(format, pgschema.Quote(o.Schema), pgschema.Quote(role)), nil
}
