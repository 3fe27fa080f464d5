package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// applied is what one variant writes: one row per message.
type applied struct {
	pool  *pgxpool.Pool
	table string
	next  int64 // id of the next message
	batch int
}

func newApplied(b *testing.B, pool *pgxpool.Pool, table string, batch int) *applied {
	exec(b, pool, `create table `+table+` (id bigint not null, account int not null, amount int not null)`)
	return &applied{pool: pool, table: table, batch: batch}
}

func exec(b *testing.B, pool *pgxpool.Pool, sql string) {
	b.Helper()
	if _, err := pool.Exec(b.Context(), sql); err != nil {
		b.Fatal(err)
	}
}

// rows are the columns of the next batch.
func (a *applied) rows() (ids []int64, accounts, amounts []int32) {
	for i := range int64(a.batch) {
		ids = append(ids, a.next+i)
		accounts = append(accounts, int32((a.next+i)%100))
		amounts = append(amounts, int32((a.next+i)%7))
	}
	return ids, accounts, amounts
}

// write is the handler's statement: the whole batch at once, which leaves a
// fence the least to hide behind.
func (a *applied) write(ctx context.Context, tx execer) error {
	ids, accounts, amounts := a.rows()
	_, err := tx.Exec(ctx, a.insert(), ids, accounts, amounts)
	return err
}

func (a *applied) insert() string {
	return `insert into ` + a.table + ` select unnest($1::bigint[]), unnest($2::int[]), unnest($3::int[])`
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// check counts what was written: each message once, none left out.
func (a *applied) check(b *testing.B) {
	var rows, distinct, top int64
	err := a.pool.QueryRow(b.Context(), `select count(*), count(distinct id), coalesce(max(id) + 1, 0) from `+a.table).Scan(&rows, &distinct, &top)
	if err != nil || rows != a.next || distinct != a.next || top != a.next {
		b.Errorf("%s: %d rows, %d distinct ids up to %d after %d messages: %v", a.table, rows, distinct, top, a.next, err)
	}
}

// BenchmarkFence compares transactions that apply a batch of messages: with the
// fence, without any guard, and with the usual table of message ids.
func BenchmarkFence(b *testing.B) {
	for _, durable := range []bool{true, false} {
		for _, batch := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("fsync=%v/batch=%d", durable, batch), func(b *testing.B) { benchmarkFence(b, durable, batch) })
		}
	}
}

func benchmarkFence(b *testing.B, durable bool, batch int) {
	pool := open(b, durable)
	fenced, queued := newFenced(b, pool, "fenced", batch), newFenced(b, pool, "queued", batch)
	plain, dedupe := newApplied(b, pool, "plain", batch), newApplied(b, pool, "dedupe", batch)
	exec(b, pool, `create table seen (id bigint primary key)`)
	const transactions = 20
	repeat := func(f func()) func() {
		return func() {
			for range transactions {
				f()
			}
		}
	}
	took := rounds(b,
		variant{"fenced", repeat(func() { fenced.commit(b) })},
		variant{"queued", repeat(func() { queued.commitQueued(b) })},
		variant{"plain", repeat(func() { plain.commit(b) })},
		variant{"dedupe", repeat(func() { dedupe.commitUnseen(b) })},
	)
	for _, a := range []*applied{fenced.applied, queued.applied, plain, dedupe} {
		a.check(b)
	}
	b.ReportMetric(0, "ns/op")
	for _, name := range []string{"fenced", "queued", "plain", "dedupe"} {
		b.ReportMetric(rate(took, name, transactions*batch), name+"-msg/s")
	}
	b.ReportMetric(speed(took, "fenced", "plain"), "fenced/plain")
	b.ReportMetric(speed(took, "queued", "plain"), "queued/plain")
	b.ReportMetric(speed(took, "fenced", "dedupe"), "fenced/dedupe")
	b.ReportMetric(speed(took, "queued", "dedupe"), "queued/dedupe")
}

// open returns a pool on a server of its own.
func open(b *testing.B, durable bool) *pgxpool.Pool {
	server := pgtest.StartServer(b, pgtest.Options{NoFsync: !durable})
	pool, err := pgxpool.New(b.Context(), server.Database(b).URL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// commit is the same transaction without the fence.
func (a *applied) commit(b *testing.B) {
	err := pgx.BeginFunc(b.Context(), a.pool, func(tx pgx.Tx) error { return a.write(b.Context(), tx) })
	if err != nil {
		b.Fatal(err)
	}
	a.next += int64(a.batch)
}

// commitUnseen writes only messages whose ids a table does not hold yet, in one
// statement.
func (a *applied) commitUnseen(b *testing.B) {
	err := pgx.BeginFunc(b.Context(), a.pool, func(tx pgx.Tx) error {
		ids, accounts, amounts := a.rows()
		_, err := tx.Exec(b.Context(), `
			with m as (select unnest($1::bigint[]) as id, unnest($2::int[]) as account, unnest($3::int[]) as amount),
			     new as (insert into seen select id from m on conflict do nothing returning id)
			insert into `+a.table+` select m.id, m.account, m.amount from m join new using (id)`, ids, accounts, amounts)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	a.next += int64(a.batch)
}

// fenced writes under a claim of a partition of its own.
type fenced struct {
	*applied
	sink  *pgsink.Sink
	fence epoch.Fence
}

func newFenced(b *testing.B, pool *pgxpool.Pool, table string, batch int) *fenced {
	ctx := b.Context()
	if err := pgsink.Migrate(ctx, pool, pgsink.Options{}); err != nil {
		b.Fatal(err)
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		b.Fatal(err)
	}
	origin := epoch.Origin{Partition: epoch.Partition{Group: "bench", Topic: table}, Log: "log", Source: "bench"}
	if err := sink.Seed(ctx, []epoch.Start{{Origin: origin}}); err != nil {
		b.Fatal(err)
	}
	seen, err := sink.Fence(ctx, origin.Partition)
	if err != nil {
		b.Fatal(err)
	}
	claimed, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "bench"}))
	if err != nil {
		b.Fatal(err)
	}
	return &fenced{applied: newApplied(b, pool, table, batch), sink: sink, fence: claimed}
}

func (f *fenced) advance() []epoch.Advance {
	return []epoch.Advance{{
		Partition: f.fence.Partition, Claim: f.fence.Claim,
		From: epoch.Offset(f.next), To: epoch.Offset(f.next + int64(f.batch)), Mark: epoch.NoMark,
	}}
}

func (f *fenced) commit(b *testing.B) {
	err := f.sink.Commit(b.Context(), f.advance(), func(ctx context.Context, tx pgsink.Tx) error { return f.write(ctx, tx) })
	if err != nil {
		b.Fatal(err)
	}
	f.next += int64(f.batch)
}

func (f *fenced) commitQueued(b *testing.B) {
	err := f.sink.Queued().Commit(b.Context(), f.advance(), func(ctx context.Context, q *pgsink.Queue) error { return f.write(ctx, q) })
	if err != nil {
		b.Fatal(err)
	}
	f.next += int64(f.batch)
}
