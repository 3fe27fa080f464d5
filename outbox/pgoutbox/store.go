package pgoutbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the options, and the statements of handlers and relays. outbox/settlement.go decides which are
// called. It also finds entries that were committed late.

// DBTX is a transaction, such as [pgsink.Tx].
//
// [pgsink.Tx]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Tx
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Store is an [outbox.Store] for the transactions TX of the application, such as
// pgsink.Tx. It is safe for concurrent use.
//
// The cost of its queries does not depend on the length of the backlog or on PostgreSQL's
// statistics. The table is empty most of the time, and a plan made for an empty table reads the
// whole table when there is a backlog. So each query fits one index only, and is planned each time
// it is run.
type Store[TX DBTX] struct {
	add, scan, next, load, remove, count, retries string
}

// DefaultSchema is the default of Options.Schema, and that of the sink.
const DefaultSchema = pgschema.DefaultName

// Options configure a [Store]. The zero value works.
type Options struct {
	// Schema is the schema of the sink, which pgsink.Migrate has made. Defaults to [DefaultSchema].
	Schema string

	// StartTimeout limits how long Open waits for a server that cannot be reached. It logs the wait after
	// 1 s and then every 10 s. Raise it if the program starts long before its server. Defaults to 30 s.
	StartTimeout time.Duration

	// Logger receives these lines. Defaults to [slog.Default].
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	if err := pgschema.CheckIdentifier("Options.Schema", o.Schema); err != nil {
		return o, fmt.Errorf("pgoutbox: %w", err)
	}
	o.StartTimeout = cmp.Or(o.StartTimeout, waits.Timeout)
	if o.StartTimeout < time.Millisecond || o.StartTimeout > 24*time.Hour {
		return o, fmt.Errorf("pgoutbox: Options.StartTimeout is %v; want 0 for the default of %v, or 1ms to 24h", o.StartTimeout, waits.Timeout)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o, nil
}

// DB is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Open returns a store on the tables that pgsink.Migrate made, and checks their version. The role needs
// what pgsink.Grant gives. Open's errors match [migrations.ErrNotMigrated], [migrations.ErrOlder] and
// [migrations.ErrNewer].
//
// After logical replication, which copies no sequences, the sequence of the table's identity column
// can be behind its entries, so new entries would overtake them. Open then returns an
// [epoch.ErrUnhealthy] with the statement that fixes it. Open checks the server that it reaches. A
// trigger checks each new entry, also on a server that comes behind the pool later; in SERIALIZABLE
// transactions it checks only once for each connection.
//
// [migrations.ErrNotMigrated]: https://pkg.go.dev/github.com/epochfence/epochfence/migrations#ErrNotMigrated
// [migrations.ErrOlder]: https://pkg.go.dev/github.com/epochfence/epochfence/migrations#ErrOlder
// [migrations.ErrNewer]: https://pkg.go.dev/github.com/epochfence/epochfence/migrations#ErrNewer
func Open[TX DBTX](ctx context.Context, db DB, o Options) (*Store[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	in := pgschema.Schema{Of: "pgoutbox", Name: o.Schema}
	if err := in.Ready(ctx, db, pgschema.Wait{Timeout: o.StartTimeout, Log: o.Logger}, in.Follows); err != nil {
		return nil, err
	}
	const (
		row = `id, message_offset, order_key, scope, idempotency_key, method, url, header, body`
		// This condition is outside of the subquery with the LIMIT, where the planner cannot choose
		// an index for it. An upper bound inside of the subquery is no substitute: in PostgreSQL 14
		// and 15, not in 18, a scan continues after the bound to the end of the group (observed).
		inPartition = ` where (found.group_name, found.topic, found.partition) = ($1, $2, $3)`
	)
	entries := pgschema.Quote(o.Schema) + `.outbox_entry`
	byID := `unnest($4::bigint[]) as wanted (id), lateral (select * from ` + entries + ` as e where e.id = wanted.id limit 1) as found` + inPartition
	return &Store[TX]{
		add: `insert into ` + entries + ` (group_name, topic, partition, message_offset, order_key, scope, idempotency_key, method, url, header, body)` +
			` values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		scan: `with recursive` + committedLate(entries) + `
			select now.now, found.* from (select pg_current_snapshot()::text) as now (now) left join lateral (
				select ` + row + ` from (
					select *, sum(octet_length(body) + octet_length(header) + 512) over (order by group_name, topic, partition, id rows between unbounded preceding and 1 preceding) as before from (
						select * from ` + entries + ` where (group_name, topic, partition, id) > ($1, $2, $3, least($4, (select id - 1 from late)))
						order by group_name, topic, partition, id limit $7
					) as found
				) as found` + inPartition + ` and coalesce(before, 0) < ` + strconv.Itoa(outbox.ScanBytes) + `
			) as found on true`,
		next: `select found.` + strings.ReplaceAll(row, `, `, `, found.`) + ` from unnest($4::text[], $5::bigint[]) as done (order_key, id), lateral (` +
			`select * from ` + entries + ` as e where (e.group_name, e.topic, e.partition, e.order_key, e.id) > ($1, $2, $3, done.order_key, done.id)` +
			` order by e.group_name, e.topic, e.partition, e.order_key, e.id limit 1) as found` + inPartition + ` and found.order_key = done.order_key` +
			` and found.added_by <> all ($7::bigint[]) and not (found.added_by >= $6 and found.added_by < ` + newest + `)`,
		load: `select found.` + strings.ReplaceAll(row, `, `, `, found.`) + ` from ` + byID,
		count: `select count(*), (extract(epoch from min(added_at)) * 1000000)::bigint from (select group_name, topic, partition, added_at from ` + entries +
			` where (group_name, topic, partition, id) > ($1, $2, $3, 0) order by group_name, topic, partition, id limit $4) as found` + inPartition,
		// Of the partition it has expressions instead of columns, which no index fits.
		remove: `delete from ` + entries + ` where id = any (array(select unnest($4::bigint[])))` +
			` and (group_name || '', topic || '', partition + 0) = ($1, $2, $3) returning id`,
		retries: `update ` + entries + ` set retry_requested = false where group_name = $1 and topic = $2 and partition = $3 and retry_requested and id = any($4) returning id`,
	}, nil
}

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
	_, err = tx.Exec(pgschema.Own(ctx), s.add, m.Partition.Group, m.Partition.Topic, m.Partition.Number, int64(m.Offset),
		e.Key, e.Scope, e.IdempotencyKey, e.Method, e.URL, header, body)
	if err != nil {
		return fmt.Errorf("pgoutbox: add: %w", err)
	}
	return nil
}

// Scan implements [outbox.Store].
func (s *Store[TX]) Scan(ctx context.Context, tx TX, p epoch.Partition, from outbox.Cursor, limit int) ([]outbox.Row, outbox.Cursor, error) {
	before, err := parseSnapshot(from.Seen)
	if err != nil {
		return nil, from, err
	}
	at, size := outbox.Cursor{ID: from.ID}, 0
	var read reader
	rows, err := all(ctx, tx, p, func(row pgx.CollectableRow) (r outbox.Row, err error) {
		raw := row.RawValues()
		if at.Seen == "" {
			at.Seen = string(raw[0])
		}
		if raw[1] != nil { // without entries, there is one row without
			r, err = read.entry(raw[1:])
			size += len(raw[8]) + len(r.Body) + 512 // as the query adds it up
		}
		return r, err
	}, s.scan, p.Group, p.Topic, p.Number, from.ID, before.end, before.open, limit)
	switch {
	case err != nil:
		return nil, from, err
	case size == 0:
		return nil, at, nil
	}
	slices.SortFunc(rows, func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) }) // the plan reads them so, which SQL does not promise: its ORDER BY would take half of the time
	at.ID, at.More = rows[len(rows)-1].ID, size >= outbox.ScanBytes
	return rows, at, nil
}

// Load implements [outbox.Store].
func (s *Store[TX]) Load(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]outbox.Row, error) {
	return all(ctx, tx, p, readEntry(), s.load, p.Group, p.Topic, p.Number, ids)
}

// Next implements [outbox.Store].
func (s *Store[TX]) Next(ctx context.Context, tx TX, p epoch.Partition, at outbox.Cursor, after []outbox.Place) ([]outbox.Row, error) {
	read, err := parseSnapshot(at.Seen)
	if err != nil {
		return nil, err
	}
	keys, ids := make([]string, len(after)), make([]int64, len(after))
	for i, a := range after {
		keys[i], ids[i] = a.Key, a.ID
	}
	return all(ctx, tx, p, readEntry(), s.next, p.Group, p.Topic, p.Number, keys, ids, read.end, read.open)
}

// Delete implements [outbox.Store].
func (s *Store[TX]) Delete(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error) {
	return all(ctx, tx, p, pgx.RowTo[int64], s.remove, p.Group, p.Topic, p.Number, ids)
}

// Count implements [outbox.Store].
func (s *Store[TX]) Count(ctx context.Context, tx TX, p epoch.Partition, limit int) (entries int, oldest time.Time, err error) {
	type counted struct {
		Entries int
		Oldest  *int64 // in microseconds
	}
	found, err := all(ctx, tx, p, pgx.RowToStructByPos[counted], s.count, p.Group, p.Topic, p.Number, limit)
	if err != nil {
		return 0, oldest, err
	}
	if at := found[0].Oldest; at != nil {
		oldest = time.UnixMicro(*at)
	}
	return found[0].Entries, oldest, nil
}

// Retries implements [outbox.Store].
func (s *Store[TX]) Retries(ctx context.Context, tx TX, p epoch.Partition, ids []int64) ([]int64, error) {
	return all(ctx, tx, p, pgx.RowTo[int64], s.retries, p.Group, p.Topic, p.Number, ids)
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

// reader reads entries. Texts that are those of the entry before are kept once.
type reader struct{ scope, method, url string }

func readEntry() pgx.RowToFunc[outbox.Row] {
	var r reader
	return func(row pgx.CollectableRow) (outbox.Row, error) { return r.entry(row.RawValues()) }
}

// entry reads the columns of a row, which are text: see all. It takes half the time of pgx's Scan, and has a third
// of its allocations.
func (r *reader) entry(columns [][]byte) (row outbox.Row, err error) {
	same := func(last *string, column []byte) string {
		if *last != string(column) {
			*last = string(column)
		}
		return *last
	}
	id, wrongID := strconv.ParseInt(string(columns[0]), 10, 64)
	offset, wrongOffset := strconv.ParseInt(string(columns[1]), 10, 64)
	row.ID, row.Offset = id, epoch.Offset(offset)
	row.Key, row.Scope, row.IdempotencyKey = string(columns[2]), same(&r.scope, columns[3]), string(columns[4])
	row.Method, row.URL = same(&r.method, columns[5]), same(&r.url, columns[6])
	header, wrongHeader := outbox.UnmarshalHeader(string(columns[7]))
	row.Header = header
	wrongBody := (*pgschema.Bytea)(&row.Body).ScanText(pgtype.Text{String: string(columns[8]), Valid: true})
	if err := cmp.Or(wrongID, wrongOffset, wrongHeader, wrongBody); err != nil {
		return row, fmt.Errorf("entry %d: %w", row.ID, err)
	}
	return row, nil
}

// snapshot identifies the transactions that had not ended when entries were read. A cursor's Seen
// is its text, in the format of PostgreSQL's pg_snapshot.
type snapshot struct {
	end  int64   // this and all later transactions
	open []int64 // these earlier transactions
}

// parseSnapshot parses a cursor's Seen. An empty text is a snapshot after all transactions: nothing
// was read yet, so no transaction can be late.
func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{end: math.MaxInt64, open: []int64{}}
	if text == "" {
		return s, nil
	}
	bad := fmt.Errorf("pgoutbox: %q is no cursor of this store", text)
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, bad
	}
	var err error
	if s.end, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return s, bad
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		if x == "" {
			continue
		}
		id, err := strconv.ParseInt(x, 10, 64)
		if err != nil {
			return s, bad
		}
		s.open = append(s.open, id)
	}
	return s, nil
}

// newest is the end of the transactions that the statement sees. An entry with a higher added_by
// was added by the statement's own transaction, or on another server from which it was restored.
// Such a restored entry is treated as an old one.
const newest = `(select pg_snapshot_xmax(pg_current_snapshot())::text::bigint)`

// lateStep is the number of entries that one step of committedLate reads.
const lateStep = 64

// committedLate returns the expressions of a WITH RECURSIVE for late: the lowest id, up to $4, of
// an entry whose transaction had not ended when the entries up to $4 were read. These transactions
// are those in $6 and all from $5 on. It reads the index on added_by in small steps, whatever
// PostgreSQL's statistics say.
func committedLate(entries string) string {
	return `
			began (looked, low, added_by) as (
				select ` + strconv.Itoa(lateStep) + `, null::bigint, $5::bigint - 1
			union all
				select step.looked, least(began.low, step.low), step.added_by from began, lateral (
					select count(*)::integer as looked, min(e.id) filter (where e.id <= $4) as low, max(e.added_by) as added_by from (
						select group_name, topic, partition, added_by, id from ` + entries + ` where (group_name, topic, partition, added_by) > ($1, $2, $3, began.added_by)
						order by group_name, topic, partition, added_by, id limit ` + strconv.Itoa(lateStep) + `
					) as e where (e.group_name, e.topic, e.partition) = ($1, $2, $3) and e.added_by < ` + newest + `
				) as step where began.looked = ` + strconv.Itoa(lateStep) + `
			),
			late (id) as (
				select least((select min(low) from began), (
					select min(e.id) from unnest($6::bigint[]) as open (added_by), lateral (
						select * from ` + entries + ` as e where (e.group_name, e.topic, e.partition, e.added_by, e.id) > ($1, $2, $3, open.added_by, 0)
						order by e.group_name, e.topic, e.partition, e.added_by, e.id limit 1
					) as e where (e.group_name, e.topic, e.partition, e.added_by) = ($1, $2, $3, open.added_by) and e.id <= $4
				))
			)`
}
