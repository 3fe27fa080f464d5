package pgoutbox

import (
	"context"
	"fmt"
	"strings"

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
//
// What its queries read is bounded by what they are asked for, however long the
// backlog is and whatever PostgreSQL knows about the table: the table is empty most
// of the time, and a plan that is made then reads all of it when there is a
// backlog. So each query fits one index only, and is planned each time it is run.
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
		row = `id, order_key, scope, idempotency_key, method, url, header, body`
		// The partition is asked about outside of a subquery with a LIMIT, where the
		// planner cannot choose an index for it.
		inPartition = ` where (found.group_name, found.topic, found.partition) = ($1, $2, $3)`
	)
	entries := quote(schema) + `.outbox_entry`
	byID := `unnest($4::bigint[]) as wanted (id), lateral (select * from ` + entries + ` as e where e.id = wanted.id limit 1) as found` + inPartition
	return &Store[TX]{
		add: `insert into ` + entries + ` (group_name, topic, partition, order_key, scope, idempotency_key, method, url, header, body)` +
			` values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		scan: `select ` + row + ` from ` + entries + ` where (group_name, topic, partition, id) > ($1, $2, $3, $4)` +
			` and (group_name, topic, partition) <= ($1, $2, $3) order by group_name, topic, partition, id limit $5`,
		next: `select found.` + strings.ReplaceAll(row, `, `, `, found.`) + ` from unnest($4::text[], $5::bigint[]) as done (order_key, id), lateral (` +
			`select * from ` + entries + ` as e where (e.group_name, e.topic, e.partition, e.order_key, e.id) > ($1, $2, $3, done.order_key, done.id)` +
			` order by e.group_name, e.topic, e.partition, e.order_key, e.id limit 1) as found` + inPartition + ` and found.order_key = done.order_key`,
		load:   `select found.` + strings.ReplaceAll(row, `, `, `, found.`) + ` from ` + byID,
		remove: `delete from ` + entries + ` where id = any (array(select found.id from ` + byID + `)) returning id`,
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
	rows, err := tx.Query(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...) // a prepared statement keeps its plan
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
