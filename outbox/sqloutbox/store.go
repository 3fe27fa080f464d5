package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the options, and the statements of handlers and relays. outbox/settlement.go decides which are
// called.

// DBTX is a transaction, such as [*sqlsink.Tx].
//
// [*sqlsink.Tx]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/sqlsink#Tx
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Store is an [outbox.Store] for the transactions TX of the application, such as
// *sqlsink.Tx. It is safe for concurrent use.
type Store[TX DBTX] struct {
	inOrder, add, scan, next, load, remove, count, retries, tried string
}

// Options configure a [Store]. The zero value works.
type Options struct {
	// TablePrefix is the sink's Options.TablePrefix. Defaults to "epochfence_".
	TablePrefix string
}

// Open returns a store on the tables that sqlsink.Migrate made in db, and checks their version. Its
// errors match ErrNotMigrated, ErrOlder and ErrNewer of package migrations. It waits up to 30 s for a locked file.
func Open[TX DBTX](ctx context.Context, db *sql.DB, d Dialect, o Options) (*Store[TX], error) {
	prefix := cmp.Or(o.TablePrefix, sqlschema.DefaultPrefix)
	if err := sqlschema.CheckPrefix("Options.TablePrefix", prefix); err != nil {
		return nil, fmt.Errorf("sqloutbox: %w", err)
	}
	if _, err := sqltx.Open(ctx, db, d.transactions(), d.tables(prefix), sqltx.Limits{Wait: 30 * time.Second}); err != nil {
		return nil, fmt.Errorf("sqloutbox: open %s: %w", d, err)
	}
	schema, err := d.schema(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("sqloutbox: open %s: %w", d, err)
	}
	const row = `SELECT id, message_offset, order_key, scope, idempotency_key, method, url, header, body FROM `
	// The indexes are given, because the database would plan by its last look at the table, when the
	// backlog was different.
	entries, byPartition, byKey := schema+prefix+`outbox_entry`, d.index(prefix+`outbox_entry_partition`), d.index(prefix+`outbox_entry_key`)
	return &Store[TX]{
		inOrder: d.inOrder(schema + prefix + `fence`),
		add: `INSERT INTO ` + entries + ` (group_name, topic, number, message_offset, order_key, scope, idempotency_key, method, url, header, body)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		scan:   d.scan(row, entries, entries+byPartition+partition+` AND id > ? ORDER BY id LIMIT ?`),
		next:   row + entries + byKey + partition + ` AND order_key = ? AND id > ? ORDER BY id LIMIT 1`,
		load:   row + entries + partition + ` AND id = ?`,
		remove: `DELETE FROM ` + entries + partition + ` AND id = ?`,
		count: `SELECT count(*), min(added_at) FROM (SELECT added_at FROM ` + entries + byPartition + partition +
			` ORDER BY id LIMIT ?) AS some`,
		retries: `SELECT id FROM ` + entries + partition + ` AND retry_requested = 1 ORDER BY id` + d.forUpdate(),
		tried:   `UPDATE ` + entries + ` SET retry_requested = 0` + partition + ` AND id = ?`,
	}, nil
}

const partition = ` WHERE group_name = ? AND topic = ? AND number = ?`

// Add implements [outbox.Store].
func (s *Store[TX]) Add(ctx context.Context, tx TX, m epoch.Message, e outbox.Entry) error {
	header, err := outbox.MarshalHeader(e.Header)
	if err != nil {
		return err
	}
	body := e.Body
	if body == nil {
		body = []byte{} // not NULL
	}
	p := m.Partition
	if s.inOrder != "" {
		var e epoch.Epoch
		if err := tx.QueryRowContext(ctx, s.inOrder, p.Group, p.Topic, p.Number).Scan(&e); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("sqloutbox: add: %w", err)
		}
	}
	_, err = tx.ExecContext(ctx, s.add, p.Group, p.Topic, p.Number, int64(m.Offset),
		e.Key, e.Scope, e.IdempotencyKey, e.Method, e.URL, header, body)
	if err != nil {
		return fmt.Errorf("sqloutbox: add: %w", err)
	}
	return nil
}

// Scan implements [outbox.Store]. Transactions that add entries commit in the order of the entries' IDs:
// SQLite has one write lock, and in MariaDB Add locks the fence.
func (s *Store[TX]) Scan(ctx context.Context, tx TX, p epoch.Partition, from outbox.Cursor, limit int) ([]outbox.Row, outbox.Cursor, error) {
	rows, err := tx.QueryContext(ctx, s.scan, p.Group, p.Topic, p.Number, from.ID, limit)
	if err != nil {
		return nil, from, fmt.Errorf("sqloutbox: scan %s: %w", p, err)
	}
	defer func() { _ = rows.Close() }()
	var all []outbox.Row
	at, size := outbox.Cursor{ID: from.ID}, 0
	for !at.More && rows.Next() {
		r, n, err := read(rows)
		if err != nil {
			return nil, from, fmt.Errorf("sqloutbox: scan %s: %w", p, err)
		}
		all = append(all, r)
		size += n
		at.ID, at.More = r.ID, size >= outbox.ScanBytes
	}
	if err := rows.Err(); err != nil {
		return nil, from, fmt.Errorf("sqloutbox: scan %s: %w", p, err)
	}
	return all, at, nil
}

// Load implements [outbox.Store].
func (s *Store[TX]) Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) (all []outbox.Row, err error) {
	for _, id := range ids {
		if all, err = one(all, p, tx.QueryRowContext(ctx, s.load, p.Group, p.Topic, p.Number, id)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Next implements [outbox.Store].
func (s *Store[TX]) Next(ctx context.Context, tx TX, p epoch.Partition, _ outbox.Cursor, after []outbox.Place) (all []outbox.Row, err error) {
	for _, a := range after {
		if all, err = one(all, p, tx.QueryRowContext(ctx, s.next, p.Group, p.Topic, p.Number, a.Key, a.ID)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func one(all []outbox.Row, p epoch.Partition, row *sql.Row) ([]outbox.Row, error) {
	r, _, err := read(row)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return all, nil
	case err != nil:
		return nil, fmt.Errorf("sqloutbox: read %s: %w", p, err)
	}
	return append(all, r), nil
}

// read returns an entry, and its size as the dialects' scans add it up.
func read(row interface{ Scan(...any) error }) (r outbox.Row, size int, err error) {
	var header string
	err = row.Scan(&r.ID, &r.Offset, &r.Key, &r.Scope, &r.IdempotencyKey, &r.Method, &r.URL, &header, &r.Body)
	if err != nil {
		return r, 0, err
	}
	if r.Header, err = outbox.UnmarshalHeader(header); err != nil {
		return r, 0, fmt.Errorf("entry %d: %w", r.ID, err)
	}
	return r, len(header) + len(r.Body) + 512, nil
}

// Count implements [outbox.Store].
func (s *Store[TX]) Count(ctx context.Context, tx TX, p epoch.Partition, limit int) (entries int, oldest time.Time, err error) {
	var at sql.NullString
	err = tx.QueryRowContext(ctx, s.count, p.Group, p.Topic, p.Number, limit).Scan(&entries, &at)
	if err == nil && at.Valid {
		oldest, err = time.Parse(time.RFC3339Nano, at.String)
	}
	if err != nil {
		return 0, oldest, fmt.Errorf("sqloutbox: count %s: %w", p, err)
	}
	return entries, oldest, nil
}

// Delete implements [outbox.Store].
func (s *Store[TX]) Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) (there []int64, err error) {
	for _, id := range ids {
		r, err := tx.ExecContext(ctx, s.remove, p.Group, p.Topic, p.Number, id)
		if err != nil {
			return nil, fmt.Errorf("sqloutbox: delete entry %d of %s: %w", id, p, err)
		}
		switch n, err := r.RowsAffected(); {
		case err != nil:
			return nil, fmt.Errorf("sqloutbox: delete entry %d of %s: %w", id, p, err)
		case n == 1:
			there = append(there, id)
		}
	}
	return there, nil
}

// Retries implements [outbox.Store].
func (s *Store[TX]) Retries(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error) {
	requested, err := s.requested(ctx, tx, p)
	if err != nil {
		return nil, fmt.Errorf("sqloutbox: what is to be tried now of %s: %w", p, err)
	}
	requested = slices.DeleteFunc(requested, func(id int64) bool { return !slices.Contains(ids, id) })
	for _, id := range requested {
		if _, err := tx.ExecContext(ctx, s.tried, p.Group, p.Topic, p.Number, id); err != nil {
			return nil, fmt.Errorf("sqloutbox: entry %d of %s is tried now: %w", id, p, err)
		}
	}
	return requested, nil
}

func (s *Store[TX]) requested(ctx context.Context, tx TX, p epoch.Partition) (ids []int64, err error) {
	rows, err := tx.QueryContext(ctx, s.retries, p.Group, p.Topic, p.Number)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Dialect is the dialect of a database: [SQLite] or [MariaDB].
type Dialect interface {
	// String returns the name of the database, for errors.
	String() string

	transactions() sqltx.Dialect

	// schema returns the qualifier of table names, so that neither another default database nor a
	// temporary table or view of a handler can take their place.
	schema(ctx context.Context, db *sql.DB) (string, error)

	// index makes the planner use an index.
	index(name string) string

	// scan returns a statement that reads the entries that found selects, in order, given the columns and the
	// table. It may leave out those behind [outbox.ScanBytes].
	scan(row, entries, found string) string

	// forUpdate ends a SELECT whose rows are locked until the transaction's end, unless its beginning
	// has locked everything.
	forUpdate() string

	// inOrder returns a statement that makes other transactions that add to a partition wait, given
	// the table of fences, so that they commit in the order of their entries' IDs. It is empty if they
	// do so anyway.
	inOrder(fences string) string

	// tables returns the tables of the sink whose names have the prefix.
	tables(prefix string) sqlschema.Prefixed
}

// SQLite is SQLite 3.37 or newer in WAL mode, through modernc.org/sqlite. These drivers work too:
// github.com/mattn/go-sqlite3, github.com/ncruces/go-sqlite3, and drivers whose errors have a
// method Code() int that returns SQLite's result code, such as github.com/glebarez/go-sqlite. Other
// drivers are refused.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) schema(context.Context, *sql.DB) (string, error) { return `main.`, nil }

func (sqlite) index(name string) string { return ` INDEXED BY ` + name }

func (sqlite) scan(row, _, found string) string { return row + found }

func (sqlite) forUpdate() string { return `` }

func (sqlite) inOrder(string) string { return `` }

func (sqlite) tables(prefix string) sqlschema.Prefixed { return sqlschema.SQLite(prefix) }

// MariaDB is MariaDB as [sqlsink.MariaDB]. A transaction that adds an entry locks the partition's fence from
// then on, until it has ended. If its process is frozen, the next claim of the partition waits until the
// server has ended the transaction.
//
// [sqlsink.MariaDB]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/sqlsink#MariaDB
var MariaDB Dialect = mariadb{}

type mariadb struct{}

func (mariadb) String() string { return sqltx.MariaDB.String() }

func (mariadb) transactions() sqltx.Dialect { return sqltx.MariaDB }

func (mariadb) schema(ctx context.Context, db *sql.DB) (string, error) {
	return sqltx.MariaDBDatabase(ctx, db)
}

func (mariadb) index(name string) string { return ` FORCE INDEX (` + name + `)` }

// scan bounds the answer in the server: the driver reads the rest of an answer, too, when its rows are closed.
func (mariadb) scan(row, entries, found string) string {
	return row + `(SELECT id AS wanted FROM (SELECT id, sum(size) OVER (ORDER BY id) - size AS before_it FROM (` +
		`SELECT id, length(header) + length(body) + 512 AS size FROM ` + found + `) AS sized) AS summed WHERE before_it < ` + strconv.Itoa(outbox.ScanBytes) +
		`) AS few STRAIGHT_JOIN ` + entries + ` ON id = wanted ORDER BY wanted`
}

func (mariadb) forUpdate() string { return ` FOR UPDATE` }

func (mariadb) inOrder(fences string) string {
	return `SELECT epoch FROM ` + fences + partition + ` FOR UPDATE`
}

func (mariadb) tables(prefix string) sqlschema.Prefixed { return sqlschema.MariaDB(prefix) }
