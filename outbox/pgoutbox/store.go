package pgoutbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// DBTX is a transaction to work in, such as [pgsink.Tx].
//
// [pgsink.Tx]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Tx
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Store is an [outbox.Store] for the transactions TX of the application, such as
// pgsink.Tx. It is safe for concurrent use.
type Store[TX DBTX] struct {
	add, scan, next, load, remove string
}

// Open returns a store on the schema that [Migrate] made, "" for [DefaultSchema].
func Open[TX DBTX](ctx context.Context, db DB, schema string) (*Store[TX], error) {
	ms, err := Migrations(schema)
	if err != nil {
		return nil, err
	}
	schema, _ = checkSchema(schema) // as Migrations did
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		v, err := version(ctx, tx, schema)
		if err == nil && v != len(ms) {
			err = versionError(schema, v, len(ms))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgoutbox: open: %w", err)
	}
	const (
		partition = ` where group_name = $1 and topic = $2 and partition = $3`
		row       = `select id, order_key, scope, idempotency_key, method, url, header, body from `
	)
	entries := quote(schema) + `.outbox_entry`
	return &Store[TX]{
		add: `insert into ` + entries + ` (group_name, topic, partition, order_key, scope, idempotency_key, method, url, header, body)` +
			` values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		scan: row + entries + partition + ` and id > $4 order by id limit $5`,
		next: `select following.* from unnest($4::text[], $5::bigint[]) as done (order_key, id), lateral (` +
			row + entries + ` as e` + partition + ` and e.order_key = done.order_key and e.id > done.id order by e.id limit 1) as following`,
		load:   row + entries + partition + ` and id = any ($4)`,
		remove: `delete from ` + entries + partition + ` and id = any ($4) returning id`,
	}, nil
}

// Add is [outbox.Store]'s, and so are the others.
func (s *Store[TX]) Add(ctx context.Context, tx TX, p epoch.Partition, e outbox.Entry) error {
	header, err := outbox.MarshalHeader(e.Header)
	if err != nil {
		return err
	}
	body := e.Body
	if body == nil {
		body = []byte{} // not NULL
	}
	_, err = tx.Exec(ctx, s.add, p.Group, p.Topic, p.Number,
		e.Key, e.Scope, e.IdempotencyKey, e.Method, e.URL, header, body)
	if err != nil {
		return fmt.Errorf("pgoutbox: add: %w", err)
	}
	return nil
}

// Scan is [outbox.Store]'s.
func (s *Store[TX]) Scan(ctx context.Context, tx TX, p epoch.Partition, after int64, limit int) ([]outbox.Row, error) {
	return all(ctx, tx, p, read, s.scan, p.Group, p.Topic, p.Number, after, limit)
}

// Load is [outbox.Store]'s.
func (s *Store[TX]) Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]outbox.Row, error) {
	return all(ctx, tx, p, read, s.load, p.Group, p.Topic, p.Number, ids)
}

// Next is [outbox.Store]'s.
func (s *Store[TX]) Next(ctx context.Context, tx TX, p epoch.Partition, after []outbox.Place) ([]outbox.Row, error) {
	keys, ids := make([]string, len(after)), make([]int64, len(after))
	for i, a := range after {
		keys[i], ids[i] = a.Key, a.ID
	}
	return all(ctx, tx, p, read, s.next, p.Group, p.Topic, p.Number, keys, ids)
}

// Delete is [outbox.Store]'s.
func (s *Store[TX]) Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error) {
	return all(ctx, tx, p, pgx.RowTo[int64], s.remove, p.Group, p.Topic, p.Number, ids)
}

func all[T any, TX DBTX](ctx context.Context, tx TX, p epoch.Partition, read pgx.RowToFunc[T], query string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("pgoutbox: entries of %s: %w", p, err)
	}
	found, err := pgx.CollectRows(rows, read)
	if err != nil {
		return nil, fmt.Errorf("pgoutbox: entries of %s: %w", p, err)
	}
	return found, nil
}

func read(row pgx.CollectableRow) (r outbox.Row, err error) {
	var header string
	err = row.Scan(&r.ID, &r.Key, &r.Scope, &r.IdempotencyKey, &r.Method, &r.URL, &header, &r.Body)
	if err != nil {
		return r, err
	}
	if r.Header, err = outbox.UnmarshalHeader(header); err != nil {
		return r, fmt.Errorf("entry %d: %w", r.ID, err)
	}
	return r, nil
}
