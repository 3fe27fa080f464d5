package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// One consumer over several PostgreSQL servers, each with a part of the partitions.

func init() {
	for _, n := range []int{1, 2, 4} {
		variants[fmt.Sprintf("kafka/shards=%d", n)] = overShards(n)
	}
}

// shardRows are the rows of several servers. On one machine the servers share its processors and
// disk, so they gain only if one server would wait, above all for its log.
func shardRows() []row {
	return []row{{
		name: "shards", what: "Kafka to PostgreSQL, queued, 8 partitions over 2 and 4 servers on this machine, beside one", source: "kafka",
		job: job{Partitions: 8, Messages: 400_000}, under: fourServers,
		figures: []figure{{"kafka/shards=2", "kafka/shards=1", 0, throughput}, {"kafka/shards=4", "kafka/shards=1", 0, throughput}},
	}}
}

// fourServers starts three more servers like the existing one.
func fourServers(ctx context.Context, s *services, plain string) (is string, end func() error, err error) {
	var servers []*pgtest.Server
	stop := func() (err error) {
		for _, server := range servers {
			err = errors.Join(err, server.Close())
		}
		return err
	}
	is = plain
	for range 3 {
		server, err := pgtest.Launch(ctx, pgtest.Options{Settings: settings})
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		servers = append(servers, server)
		conn, err := pgx.Connect(ctx, server.URL("postgres"))
		if err == nil {
			err = errors.Join(pgsink.Migrate(ctx, conn, pgsink.Options{}), conn.Close(ctx))
		}
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		is += " " + server.URL("postgres")
	}
	return is, stop, nil
}

// overShards runs a consumer on the first n of the job's databases. The effects' table of the first
// one exists; overShards makes the others, and sums all.
func overShards(n int) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (o outcome, failed error) {
		var pools []*pgxpool.Pool
		var shards []epoch.Sink[*pgsink.Queue]
		for i, url := range strings.Fields(j.Database)[:n] {
			pool, err := pgxpool.New(ctx, url)
			if err != nil {
				return o, err
			}
			defer pool.Close()
			if i > 0 {
				if err := createTables(ctx, pool, j.Table); err != nil {
					return o, err
				}
				defer func() { failed = errors.Join(failed, dropTables(ctx, pool, j.Table)) }()
			}
			sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
			if err != nil {
				return o, err
			}
			pools, shards = append(pools, pool), append(shards, sink.Queued())
		}
		sink, err := shardsink.New(shardsink.ByNumber, shards...)
		if err != nil {
			return o, err
		}
		if o, err = consumeInto(ctx, j, fromKafka, sink, consumer.Each(applyOne[*pgsink.Queue](j.Table)), unobserved(ctx)); err != nil {
			return o, err
		}
		applied := 0
		for shard, pool := range pools {
			var rows, ids, wrong int
			err := pool.QueryRow(ctx, `select count(*), count(distinct id), count(*) filter (where id % $1 % $2 <> $3) from `+j.Table,
				j.Partitions, n, shard).Scan(&rows, &ids, &wrong)
			if err != nil {
				return o, err
			}
			if rows != ids || wrong > 0 {
				return o, fmt.Errorf("server %d has %d rows with %d ids, %d of which are not its own", shard, rows, ids, wrong)
			}
			applied += rows
		}
		if applied != j.Messages {
			return o, fmt.Errorf("after %d messages there are %d rows", j.Messages, applied)
		}
		return o, nil
	}
}
