// Package pgstore is a [cas.Store] in a table of PostgreSQL, 14 or newer.
//
// Each item is a row of cas_item. Its version is a number of a sequence and a random id, so that
// versions do not repeat after a restored backup. The package hides the statements, the schema, and
// the isolation that a role may have as its default. The store works through PgBouncer in
// transaction mode as far as the pool's query mode does.
//
// The pool may be that of a sink, of any size. While all its connections are in use, requests go
// over one connection beside it, so that leases do not wait behind work. It is closed a minute
// after its last request.
package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/waits"
)

var (
	_ cas.BatchGetter  = (*Store)(nil)
	_ cas.BatchSwapper = (*Store)(nil)
)

// Store is safe for concurrent use.
type Store struct {
	pool                                               *pgxpool.Pool
	beside                                             beside
	table, facts, get, all, create, swap, remove, list string
}

const columns = "value, note, number, number || '.' || nonce"

// DefaultSchema is the default of Options.Schema.
const DefaultSchema = pgschema.DefaultName

// Options configure a [Store]. The zero value works.
type Options struct {
	// Schema is the schema that pgsink.Migrate has made. Defaults to [DefaultSchema].
	Schema string
}

func (o Options) withDefaults() (Options, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	if err := pgschema.CheckIdentifier("Options.Schema", o.Schema); err != nil {
		return o, fmt.Errorf("pgstore: %w", err)
	}
	return o, nil
}

// Open returns a store on the tables that pgsink.Migrate made, and checks their version. Its errors
// match ErrNotMigrated, ErrOlder and ErrNewer of package migrations. The role needs what pgsink.Grant gives.
// The pool stays the caller's. It must connect to the primary server.
// Open waits up to 30 s for a server that cannot be reached, and logs the wait to [slog.Default].
//
// [slog.Default]: https://pkg.go.dev/log/slog#Default
func Open(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	in := pgschema.Quote(o.Schema)
	literal := "'" + strings.ReplaceAll(in, "'", "''") + "."
	item, place, next := in+".cas_item", in+".cas_place", "nextval("+literal+"cas_number')"
	s := &Store{
		pool:  pool,
		table: item,
		facts: "select id::text, pg_is_in_recovery(), (select relpersistence = 'u' from pg_class where oid = " + literal + "cas_item'::regclass)," +
			" current_setting('synchronous_commit') = 'off' from " + in + ".cas_source",
		get: "select " + columns + " from " + item + " where ctid = " + place + "($1)",
		all: "select i.* from unnest($1::bytea[]) as wanted (key)" +
			" cross join lateral (select key, " + columns + " from " + item + " where ctid = " + place + "(wanted.key) offset 0) as i",
		// The lock is taken before the number. Otherwise an item could be written and deleted
		// between the two, and have had a higher number.
		create: "insert into " + item + " (key, value, note, number, nonce)" +
			" select $1::bytea, $2::bytea, $3::bytea, " + next + ", gen_random_uuid()" +
			" from (select pg_advisory_xact_lock(hashtextextended(encode($1::bytea, 'hex'), 0)) offset 0) as locked" +
			" returning " + columns,
		swap: "update " + item + " set value = $2, note = $3, number = " + next + ", nonce = gen_random_uuid()" +
			" where ctid = " + place + "($1) and number || '.' || nonce = $4 returning " + columns,
		remove: "delete from " + item + " where ctid = " + place + "($1) and number || '.' || nonce = $2",
		list:   "select key, " + columns + " from " + item + " where key >= $1 and key < $2 and " + onPrimary + " order by key limit $3",
	}
	schema := pgschema.Schema{Of: "pgstore", Name: o.Schema}
	err = schema.Ready(ctx, pool, pgschema.Wait{Timeout: waits.Timeout, Log: slog.Default()}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.factsIn(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// onPrimary fails a query on a standby, which may lag. It is evaluated once, also if there is no row.
const onPrimary = "(select (case when pg_is_in_recovery() then '" + standby + "' else 'true' end)::boolean)"

const standby = "the server is a standby, connect to the primary (target_session_attrs=read-write)"

var facts = cas.Facts{Numbers: true, ListsWhole: true, MaxKey: 1024, MaxValue: 16 << 20, MaxNote: 1 << 20}

// Facts implements [cas.Store]. Forgets is true if synchronous_commit is off. The store cannot see that
// a failover to a standby that replicates asynchronously may lose acknowledged writes.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	var f cas.Facts
	err := s.on(ctx, func(conn *pgx.Conn) (err error) {
		f, err = s.factsIn(ctx, conn)
		return err
	})
	if err != nil {
		return cas.Facts{}, fmt.Errorf("pgstore: facts: %w", err)
	}
	return f, nil
}

type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *Store) factsIn(ctx context.Context, db rower) (cas.Facts, error) {
	f := facts
	var lags, unlogged bool
	err := db.QueryRow(ctx, s.facts).Scan(&f.Source, &lags, &unlogged, &f.Forgets)
	switch {
	case err != nil:
		return cas.Facts{}, err
	case lags:
		return cas.Facts{}, fmt.Errorf("%w: %s", cas.ErrUnsuitable, standby)
	case unlogged:
		return cas.Facts{}, fmt.Errorf("%w: a crash of the server empties the table cas_item; run: ALTER TABLE %s SET LOGGED", cas.ErrUnsuitable, s.table)
	}
	f.Source = "postgres:" + f.Source
	return f, nil
}

// Now implements [cas.Clock].
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now int64
	if err := s.pool.QueryRow(ctx, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint").Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("pgstore: read the server's clock: %w", err)
	}
	return time.UnixMicro(now), nil
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := s.item(ctx, cas.Item{Key: key}, s.get, []byte(key))
	if errors.Is(err, pgx.ErrNoRows) {
		return cas.Item{Key: key}, nil
	}
	return item, failed("get", key, err)
}

// GetAll implements [cas.BatchGetter].
func (s *Store) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	items, place := make([]cas.Item, len(keys)), map[string]int{}
	wanted := make([][]byte, len(keys))
	for i, key := range keys {
		if err := facts.Check(key, nil, nil); err != nil {
			return nil, failed("get", key, err)
		}
		items[i], place[key], wanted[i] = cas.Item{Key: key}, i, []byte(key)
	}
	found, err := s.items(ctx, s.all, wanted)
	if err != nil {
		return nil, failed("get", strings.Join(keys, ", "), err)
	}
	for _, item := range found {
		items[place[item.Key]] = item
	}
	return items, nil
}

// items runs a query that returns rows with their keys.
func (s *Store) items(ctx context.Context, sql string, args ...any) (items []cas.Item, err error) {
	err = s.on(ctx, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, sql, args...)
		items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (item cas.Item, err error) {
			var key pgschema.Bytea
			err = row.Scan(&key, (*pgschema.Bytea)(&item.Value), (*pgschema.Bytea)(&item.Note), &item.Number, &item.Version)
			item.Key, item.Live = string(key), true
			return item, err
		})
		return err
	})
	return items, err
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	sql, args := s.statement(cas.Write{Seen: seen, Value: value, Note: note})
	item, err := s.item(ctx, cas.Item{Key: seen.Key, Value: value, Note: note}, sql, args...)
	return item, failed("swap", seen.Key, conflict(err))
}

func (s *Store) statement(w cas.Write) (sql string, args []any) {
	args = []any{[]byte(w.Seen.Key), notNil(w.Value), notNil(w.Note)}
	if w.Seen.Version == "" {
		return s.create, args
	}
	return s.swap, append(args, w.Seen.Version)
}

// SwapAll implements [cas.BatchSwapper]. The statements are one transaction, in the order of keys, so that no two
// wait for each other. What another isolation than READ COMMITTED refuses is written one by one.
func (s *Store) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	results, order := make([]cas.Written, len(writes)), []int{}
	for i, w := range writes {
		if results[i].Err = facts.Check(w.Seen.Key, w.Value, w.Note); results[i].Err == nil {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(writes[a].Seen.Key, writes[b].Seen.Key) })
	err := s.on(ctx, func(conn *pgx.Conn) error {
		all := &pgx.Batch{}
		for _, i := range order {
			sql, args := s.statement(writes[i])
			all.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
				item := cas.Item{Key: writes[i].Seen.Key, Live: true}
				err := row.Scan((*pgschema.Bytea)(&item.Value), (*pgschema.Bytea)(&item.Note), &item.Number, &item.Version)
				if errors.Is(err, pgx.ErrNoRows) {
					results[i].Err = cas.ErrConflict
					return nil
				}
				results[i].Item = item
				return err
			})
		}
		return conn.SendBatch(ctx, all).Close()
	})
	pg, undone := errors.AsType[*pgconn.PgError](err)
	undone = undone && (pg.Code == stricter || pg.Code == "40001")
	for i, w := range writes {
		r := &results[i]
		if undone {
			r.Item, r.Err = s.Swap(ctx, w.Seen, w.Value, w.Note)
		} else if err := cmp.Or(r.Err, conflict(err)); err != nil {
			*r = cas.Written{Err: failed("swap", w.Seen.Key, err)}
		}
	}
	return results
}

// stricter is the SQLSTATE with which cas_only_item refuses a create, where the default isolation is
// not READ COMMITTED.
const stricter = "XF101"

// item runs a statement that returns one row.
func (s *Store) item(ctx context.Context, of cas.Item, sql string, args ...any) (cas.Item, error) {
	if err := facts.Check(of.Key, of.Value, of.Note); err != nil {
		return cas.Item{}, err
	}
	item := cas.Item{Key: of.Key, Live: true}
	err := s.on(ctx, func(conn *pgx.Conn) error {
		run := func(db rower) error {
			return db.QueryRow(ctx, sql, args...).Scan((*pgschema.Bytea)(&item.Value), (*pgschema.Bytea)(&item.Note), &item.Number, &item.Version)
		}
		err := run(conn)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == stricter {
			return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return run(tx) })
		}
		return err
	})
	if err != nil {
		return cas.Item{}, err
	}
	return item, nil
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	err := facts.Check(seen.Key, nil, nil)
	if err == nil {
		var tag pgconn.CommandTag
		err = s.on(ctx, func(conn *pgx.Conn) (err error) {
			tag, err = conn.Exec(ctx, s.remove, []byte(seen.Key), seen.Version)
			return err
		})
		if err == nil && tag.RowsAffected() == 0 {
			err = cas.ErrConflict
		}
	}
	return failed("delete", seen.Key, conflict(err))
}

// page is the number of items that List reads at a time.
const page = 200

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		from, end := []byte(prefix), after(prefix)
		for {
			items, err := s.items(ctx, s.list, from, end, page)
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if len(items) < page {
				return
			}
			from = []byte(items[page-1].Key + "\x00")
		}
	}
}

// after returns the smallest key that follows all keys with the prefix.
func after(prefix string) []byte {
	for end := []byte(prefix); len(end) > 0; end = end[:len(end)-1] {
		if last := &end[len(end)-1]; *last < 0xff {
			*last++
			return end
		}
	}
	return bytes.Repeat([]byte{0xff}, facts.MaxKey+1)
}

// conflict returns the meaning of an error of a write.
func conflict(err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return cas.ErrConflict
	case errors.As(err, &pg) && pg.Code == "40001": // serialization_failure, if that is the default isolation
		return fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case pg != nil && pg.Code == "53100": // disk_full
		return fmt.Errorf("%w: make room on the server's disk: %w", cas.ErrFull, err)
	}
	return err
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pgstore: %s %q: %w", what, key, err)
}

// notNil returns b, or an empty value where b is nil, which pgx sends as NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
