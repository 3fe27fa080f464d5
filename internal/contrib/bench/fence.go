package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Sequential transactions on one connection, without a source. Each applies a batch in one
// statement.

func init() {
	variants["plain"] = transactions(plain)
	variants["piped"] = transactions(piped)
	variants["dedupe"] = transactions(dedupe)
	variants["fenced"] = transactions(fenced)
	variants["queued"] = transactions(queued)
}

// warmup is the number of transactions before the clock starts, for plans and caches.
const warmup = 50

// begin prepares a kind of transaction. commit applies a set; from is the offset of its first
// message.
type begin func(ctx context.Context, pool *pgxpool.Pool, j job) (commit func(from int64, s *set) error, err error)

func transactions(kind begin) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (outcome, error) {
		pool, err := pgxpool.New(ctx, j.Database)
		if err != nil {
			return outcome{}, err
		}
		defer pool.Close()
		commit, err := kind(ctx, pool, j)
		if err != nil {
			return outcome{}, err
		}
		var c clock
		applied := 0
		for n := 0; applied < j.Messages; n++ {
			if n == warmup {
				c.start(applied)
			}
			if err := commit(int64(applied), numbered(int64(applied), j.Batch)); err != nil {
				return outcome{}, err
			}
			applied += j.Batch
		}
		return c.stop(applied), nil
	}
}

func plain(ctx context.Context, pool *pgxpool.Pool, j job) (func(int64, *set) error, error) {
	return func(_ int64, s *set) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return s.insert(ctx, tx, j.Table) })
	}, nil
}

func piped(ctx context.Context, pool *pgxpool.Pool, j job) (func(int64, *set) error, error) {
	return func(_ int64, s *set) error {
		return inOneGo(ctx, pool, func(b *pgx.Batch) { b.Queue(insertSet(j.Table), s.ids, s.accounts, s.amounts) })
	}, nil
}

func inOneGo(ctx context.Context, pool *pgxpool.Pool, queue func(*pgx.Batch)) error {
	var b pgx.Batch
	b.Queue("begin")
	queue(&b)
	b.Queue("commit")
	return pool.SendBatch(ctx, &b).Close()
}

func dedupe(ctx context.Context, pool *pgxpool.Pool, j job) (func(int64, *set) error, error) {
	return func(_ int64, s *set) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return s.insertUnseen(ctx, tx, j.Table) })
	}, nil
}

func fenced(ctx context.Context, pool *pgxpool.Pool, j job) (func(int64, *set) error, error) {
	sink, fence, err := claimed(ctx, pool, j)
	if err != nil {
		return nil, err
	}
	return func(from int64, s *set) error {
		return sink.Commit(ctx, advance(fence, from, len(s.ids)), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			return s.insert(ctx, tx, j.Table)
		})
	}, nil
}

func queued(ctx context.Context, pool *pgxpool.Pool, j job) (func(int64, *set) error, error) {
	sink, fence, err := claimed(ctx, pool, j)
	if err != nil {
		return nil, err
	}
	return func(from int64, s *set) error {
		return sink.Queued().Commit(ctx, advance(fence, from, len(s.ids)), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
			return s.insert(ctx, q, j.Table)
		})
	}, nil
}

func claimed(ctx context.Context, pool *pgxpool.Pool, j job) (*pgsink.Sink, epoch.Fence, error) {
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return nil, epoch.Fence{}, err
	}
	origin := epoch.Origin{Partition: epoch.Partition{Group: "bench", Topic: j.Table}, Log: "log", Source: "bench"}
	if err := sink.Seed(ctx, []epoch.Start{{Origin: origin}}); err != nil {
		return nil, epoch.Fence{}, err
	}
	seen, err := epoch.FenceOf(ctx, sink, origin.Partition)
	if err != nil {
		return nil, epoch.Fence{}, err
	}
	fence, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "bench"}))
	return sink, fence, err
}

func advance(f epoch.Fence, from int64, n int) []epoch.Advance {
	return []epoch.Advance{{
		Partition: f.Partition, Claim: f.Claim, From: epoch.Offset(from), To: epoch.Offset(from) + epoch.Offset(n), Mark: epoch.NoMark,
	}}
}

// The effect of a message is a row: its id, which is its value in the topic, and an account and an
// amount computed from the id.

func account(id int64) int32 { return int32(id % 100) }
func amount(id int64) int32  { return int32(id % 7) }

type set struct {
	ids               []int64
	accounts, amounts []int32
}

func sized(n int) *set {
	return &set{make([]int64, 0, n), make([]int32, 0, n), make([]int32, 0, n)}
}

func (s *set) add(id int64) {
	s.ids = append(s.ids, id)
	s.accounts = append(s.accounts, account(id))
	s.amounts = append(s.amounts, amount(id))
}

func (s *set) addValue(value []byte) error {
	id, err := strconv.ParseInt(string(value), 10, 64)
	if err == nil {
		s.add(id)
	}
	return err
}

func numbered(from int64, n int) *set {
	s := sized(n)
	for i := range int64(n) {
		s.add(from + i)
	}
	return s
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// insert writes the set in one statement. This is cheap work, so that the fence's share of the time
// is large.
func (s *set) insert(ctx context.Context, tx execer, table string) error {
	_, err := tx.Exec(ctx, insertSet(table), s.ids, s.accounts, s.amounts)
	return err
}

func insertSet(table string) string {
	return `insert into ` + table + ` select unnest($1::bigint[]), unnest($2::int[]), unnest($3::int[])`
}

func (s *set) insertUnseen(ctx context.Context, tx execer, table string) error {
	_, err := tx.Exec(ctx, `
		with m as (select unnest($1::bigint[]) as id, unnest($2::int[]) as account, unnest($3::int[]) as amount),
		     new as (insert into `+seen(table)+` select id from m on conflict do nothing returning id)
		insert into `+table+` select m.id, m.account, m.amount from m join new using (id)`, s.ids, s.accounts, s.amounts)
	return err
}

func insertOne(ctx context.Context, tx execer, table string, value []byte) error {
	id, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, insertRow(table), id, account(id), amount(id))
	return err
}

func insertRow(table string) string { return `insert into ` + table + ` values ($1, $2, $3)` }

func seen(table string) string { return table + "_seen" }

// createTables makes the tables of a variant.
func createTables(ctx context.Context, pool *pgxpool.Pool, table string) error {
	for _, sql := range []string{
		`create table ` + table + ` (id bigint not null, account int not null, amount int not null)`,
		`create table ` + seen(table) + ` (id bigint primary key)`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

func dropTables(ctx context.Context, pool *pgxpool.Pool, table string) error {
	_, err := pool.Exec(ctx, `drop table `+table+`, `+seen(table))
	return err
}

// check verifies that each of n messages was written once. It returns errDoubled if some were
// written more than once.
func check(ctx context.Context, pool *pgxpool.Pool, table string, n int) error {
	var rows, ids, top, sum, want int64
	err := pool.QueryRow(ctx, `select count(*), count(distinct id), coalesce(max(id) + 1, 0), coalesce(sum(amount), 0),
			(select coalesce(sum(i % 7), 0) from generate_series(0, $1::bigint - 1) i) from `+table, n).Scan(&rows, &ids, &top, &sum, &want)
	if err != nil {
		return err
	}
	if rows == int64(n) && ids == int64(n) && top == int64(n) && sum == want {
		return nil
	}
	err = fmt.Errorf("after %d messages there are %d rows with %d ids up to %d, which add up to %d and not to %d", n, rows, ids, top, sum, want)
	if rows > ids {
		err = fmt.Errorf("%w: %w", errDoubled, err)
	}
	return err
}
