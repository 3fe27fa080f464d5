package main

import (
	"context"

	"github.com/jackc/pgx/v5"
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
	seen, err := sink.Fence(ctx, origin.Partition)
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
