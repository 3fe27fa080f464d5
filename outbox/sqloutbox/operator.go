package sqloutbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
)

// This file is the operators' side: entries, actions on them, and their history. Package operate
// decides which action is possible.

// Operator operates the entries of a database. It is safe for concurrent use.
type Operator struct {
	transactions                               *sqltx.DB
	list, show, retry, discard, record, listed string
}

var _ operate.Outbox = (*Operator)(nil)

// OpenOperator returns an operator of the outbox in db, after the checks of [Open].
func OpenOperator(ctx context.Context, db *sql.DB, d Dialect, o Options) (*Operator, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	transactions, err := sqltx.Open(ctx, db, d.transactions(), schema(d, o), limits)
	if err != nil {
		return nil, fmt.Errorf("sqloutbox: open %s: %w", d, err)
	}
	const (
		head = `id, group_name, topic, number, order_key, scope, idempotency_key, method, added_at, retry_requested, url`
		key  = ` WHERE id = ? AND group_name = ? AND topic = ? AND number = ? AND idempotency_key = ? RETURNING scope`
	)
	entries, acts := d.schema()+o.TablePrefix+`entry`, d.schema()+o.TablePrefix+`act`
	return &Operator{
		transactions: transactions,
		list: `SELECT ` + head + ` FROM ` + entries + ` WHERE id > ? AND (? = '' OR group_name = ?) AND (? = '' OR topic = ?)` +
			` AND (? IS NULL OR number = ?) AND (? IS NULL OR order_key = ?) ORDER BY id LIMIT ?`,
		show:    `SELECT ` + head + `, header, body FROM ` + entries + ` WHERE id = ?`,
		retry:   `UPDATE ` + entries + ` SET retry_requested = 1` + key,
		discard: `DELETE FROM ` + entries + key,
		record: `INSERT INTO ` + acts + ` (kind, entry, group_name, topic, number, scope, idempotency_key, operator, reason)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		listed: `SELECT acted_at, kind, entry, group_name, topic, number, scope, idempotency_key, operator, reason FROM ` + acts +
			` ORDER BY id DESC LIMIT ?`,
	}, nil
}

func scanEntry(row *sql.Rows, e *operate.OutboxEntry, more ...any) error {
	var at string
	p := &e.Partition
	err := row.Scan(append([]any{&e.ID, &p.Group, &p.Topic, &p.Number, &e.Key, &e.Scope, &e.IdempotencyKey, &e.Method, &at, &e.RetryRequested, &e.URL}, more...)...)
	e.AddedAt = stamp(at)
	return err
}

func stamp(s string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, s)
	return t
}

// Entries implements [operate.Outbox].
func (o *Operator) Entries(ctx context.Context, q operate.OutboxQuery) (found []operate.OutboxEntry, err error) {
	args := []any{q.After, q.Group, q.Group, q.Topic, q.Topic, q.Number, q.Number, q.Key, q.Key, operate.Limit(q.Limit)}
	err = o.transactions.Rows(ctx, func() { found = nil }, o.list, args, func(rows *sql.Rows) error {
		var e operate.OutboxEntry
		err := scanEntry(rows, &e)
		e.URL = secret.Receiver(e.URL)
		found = append(found, e)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqloutbox: list entries: %w", err)
	}
	return found, nil
}

// Entry implements [operate.Outbox].
func (o *Operator) Entry(ctx context.Context, id int64) (e operate.OutboxEntry, err error) {
	there := false
	err = o.transactions.Rows(ctx, func() { there = false }, o.show, []any{id}, func(rows *sql.Rows) (err error) {
		there = true
		var header string
		if err := scanEntry(rows, &e, &header, &e.Body); err != nil {
			return err
		}
		e.Header, err = outbox.UnmarshalHeader(header)
		return err
	})
	if err == nil && !there {
		err = operate.ErrNoOutboxEntry
	}
	if err != nil {
		return operate.OutboxEntry{}, fmt.Errorf("sqloutbox: read entry %d: %w", id, err)
	}
	return e, nil
}

// DoOutbox implements [operate.Outbox].
func (o *Operator) DoOutbox(ctx context.Context, a operate.OutboxAct) error {
	if err := o.do(ctx, a); err != nil {
		return fmt.Errorf("sqloutbox: %s entry %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Partition, err)
	}
	return nil
}

func (o *Operator) do(ctx context.Context, a operate.OutboxAct) error {
	if err := a.Check(); err != nil {
		return err
	}
	t, err := o.transactions.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.End()
	within := context.WithoutCancel(ctx) // Commit checks ctx
	e, p := a.Seen, a.Seen.Partition
	query := map[operate.OutboxKind]string{operate.OutboxRetry: o.retry, operate.OutboxDiscard: o.discard}[a.Kind]
	var scope string
	err = t.Conn.QueryRowContext(within, query, e.ID, p.Group, p.Topic, p.Number, e.IdempotencyKey).Scan(&scope)
	if errors.Is(err, sql.ErrNoRows) {
		return operate.ErrNoOutboxEntry
	}
	if err != nil {
		return err
	}
	if _, err := t.Conn.ExecContext(within, o.record, string(a.Kind), e.ID, p.Group, p.Topic, p.Number, scope, e.IdempotencyKey, a.By, a.Reason); err != nil {
		return err
	}
	return t.Commit(ctx)
}

// OutboxHistory implements [operate.Outbox].
func (o *Operator) OutboxHistory(ctx context.Context, most int) (found []operate.OutboxRecord, err error) {
	err = o.transactions.Rows(ctx, func() { found = nil }, o.listed, []any{operate.Limit(most)}, func(rows *sql.Rows) error {
		var r operate.OutboxRecord
		var at string
		err := rows.Scan(&at, &r.Kind, &r.Entry, &r.Partition.Group, &r.Partition.Topic, &r.Partition.Number, &r.Scope, &r.IdempotencyKey, &r.By, &r.Reason)
		r.At = stamp(at)
		found = append(found, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqloutbox: read what operators did: %w", err)
	}
	return found, nil
}
