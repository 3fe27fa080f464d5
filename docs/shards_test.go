package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// shipFrom applies the messages of a source to several databases.
func shipFrom(ctx context.Context, source consumer.Source, route func(epoch.Partition, int) int, pools ...*pgxpool.Pool) error {
	var shards []epoch.Sink[pgsink.Tx]
	var first *pgsink.Sink
	for _, pool := range pools {
		s, err := pgsink.Open(ctx, pool, pgsink.Options{})
		if err != nil {
			return err
		}
		if first == nil {
			first = s
		}
		shards = append(shards, s)
	}
	sink, err := shardsink.New(route, shards...)
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		return ship(ctx, tx, string(m.Value)) // in the database of m.Partition
	}
	return consumer.Run(ctx, source, sink, consumer.Each(handle).OnFailure(first.DeadLetter), consumer.Options{})
}

// withAThird leaves partitions 0 to 3 where they were when there were two databases.
func withAThird(p epoch.Partition, _ int) int {
	if p.Number < 4 {
		return int(p.Number) % 2
	}
	return 2
}

// whileItMoves has partition 3 wait, and nothing else.
func whileItMoves(p epoch.Partition, shards int) int {
	if p.Topic == "orders" && p.Number == 3 {
		return -1
	}
	return withAThird(p, shards)
}

// moved has it in the third.
func moved(p epoch.Partition, shards int) int {
	if p.Topic == "orders" && p.Number == 3 {
		return 2
	}
	return withAThird(p, shards)
}

func TestADatabaseIsAddedAndAPartitionMovedAsTheGuideSays(t *testing.T) {
	var pools []*pgxpool.Pool
	for range 3 {
		pools = append(pools, database(t, "dedupe.sql"))
	}
	log := memsource.New("orders", 4)
	group := log.Group("shipping")
	orders := 0
	send := func(n int32) {
		log.Append(n, fmt.Sprintf("%d/%d", n, orders))
		orders++
	}
	run := func(ctx context.Context, route func(epoch.Partition, int) int, pools ...*pgxpool.Pool) {
		t.Helper()
		if err := shipFrom(ctx, group.Member("a"), route, pools...); err != nil {
			t.Fatal(err)
		}
	}
	want := func(shard int, orders string) {
		t.Helper()
		var got string
		err := pools[shard].QueryRow(t.Context(), "select coalesce(string_agg(order_id, ' ' order by order_id), '') from shipment").Scan(&got)
		if err != nil || got != orders {
			t.Errorf("database %d has %q, %v; want %q", shard, got, err, orders)
		}
	}
	for n := range int32(4) {
		send(n)
	}
	run(group.UntilApplied(t.Context()), shardsink.ByNumber, pools[:2]...)
	want(0, "0/0 2/2")
	want(1, "1/1 3/3")

	log.AddPartitions(5)
	send(3)
	send(4)
	run(group.UntilApplied(t.Context()), withAThird, pools...)
	want(1, "1/1 3/3 3/4")
	want(2, "4/5")

	// Partition 3 waits, and the others continue.
	send(3)
	send(0)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- shipFrom(ctx, group.Member("a"), whileItMoves, pools...) }()
	await(t, pools[0], "select count(*)::text from shipment where order_id like '0/%'", "2")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	want(1, "1/1 3/3 3/4")

	// It moves: the effects, then the fence. A process that was frozen still holds it.
	was, err := epoch.FenceOf(t.Context(), sinkOn(t, pools[1]), epoch.Partition{Group: "shipping", Topic: "orders", Number: 3})
	if err != nil {
		t.Fatal(err)
	}
	zombie := func() error {
		a := epoch.Advance{Partition: was.Partition, Claim: was.Claim, From: was.Next, To: was.Next + 1}
		return sinkOn(t, pools[1]).Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			return ship(ctx, tx, "3/zombie")
		})
	}
	exec := func(shard int, sql string) {
		t.Helper()
		if _, err := pools[shard].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	person(t, pools[1], operate.ActPause, was.Partition)
	if err := zombie(); !errors.Is(err, epoch.ErrStale) {
		t.Errorf("a process that was frozen commits while the partition is moved: %v", err)
	}
	exec(1, "delete from shipment where order_id like '3/%'")
	exec(2, "insert into shipment (order_id) values ('3/3'), ('3/4')")
	exec(2, script(t, "shard_new.sql"))
	copyFence(t, pools[1], pools[2])
	exec(1, script(t, "shard_old.sql"))
	exec(0, script(t, "shard_others.sql"))
	person(t, pools[2], operate.ActResume, was.Partition)
	if err := zombie(); !errors.Is(err, epoch.ErrStale) {
		t.Errorf("a process that was frozen commits after the partition was moved: %v", err)
	}
	left, err := epoch.FenceOf(t.Context(), sinkOn(t, pools[1]), was.Partition)
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Check(was.Origin); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("a process that has the old database alone would claim the partition there: %v", err)
	}

	run(group.UntilApplied(t.Context()), moved, pools...)
	want(0, "0/0 0/7 2/2")
	want(1, "1/1")
	want(2, "3/3 3/4 3/6 4/5")

	// Whoever routes it as before is refused.
	old, err := shardsink.New(withAThird, sinkOn(t, pools[0]), sinkOn(t, pools[1]), sinkOn(t, pools[2]))
	if err != nil {
		t.Fatal(err)
	}
	_, err = epoch.FenceOf(t.Context(), old, epoch.Partition{Group: "shipping", Topic: "orders", Number: 3})
	if !errors.Is(err, epoch.ErrElsewhere) || !strings.Contains(err.Error(), "to shard 1, but shard 1 says that it is in shard 2") {
		t.Errorf("err = %v", err)
	}
}

func sinkOn(t *testing.T, pool *pgxpool.Pool) epoch.Sink[pgsink.Tx] {
	t.Helper()
	s, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// person does what epochfence pause and resume do.
func person(t *testing.T, pool *pgxpool.Pool, kind operate.ActKind, p epoch.Partition) {
	t.Helper()
	op, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := op.Partition(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := op.Act(t.Context(), operate.NewAct(kind, seen.Fence, "anna", "moving to shard 2")); err != nil {
		t.Fatal(err)
	}
}

// copyFence is what the guide does with psql's \copy.
func copyFence(t *testing.T, from, to *pgxpool.Pool) {
	t.Helper()
	var row bytes.Buffer
	source, err := from.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer source.Release()
	sink, err := to.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Release()
	const one = "(select * from epochfence.fence where (group_name, topic, partition) = ('shipping', 'orders', 3))"
	if _, err := source.Conn().PgConn().CopyTo(t.Context(), &row, "copy "+one+" to stdout"); err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Conn().PgConn().CopyFrom(t.Context(), &row, "copy epochfence.fence from stdin"); err != nil {
		t.Fatal(err)
	}
}
