package pgsink_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestAnOldSnapshotDoesNotSlowCommits, nor claims and looks: while somebody holds a snapshot, no
// dead version of a fence's row is removed, and each commit adds one. The pages that a statement
// reads say how many it passes. With EPOCHFENCE_SNAPSHOT=1 it takes the time as well, for minutes.
func TestAnOldSnapshotDoesNotSlowCommits(t *testing.T) {
	t.Parallel()
	commits, slice := 3_000, 500
	long := os.Getenv("EPOCHFENCE_SNAPSHOT") != ""
	if long {
		commits, slice = 200_000, 5_000
	}
	held, free := newCommitting(t), newCommitting(t)
	held.holdSnapshot(t)
	var with, without []time.Duration
	for done := 0; done < commits; done += slice {
		with = append(with, held.commit(t, slice))
		if long {
			without = append(without, free.commit(t, slice))
			t.Logf("%d commits: %v each, %v without the snapshot", done+slice, with[len(with)-1], without[len(without)-1])
		}
	}
	if long { // the fastest of the last quarter, as other programs may slow some
		late := len(with) * 3 / 4
		if with, without := slices.Min(with[late:]), slices.Min(without[late:]); with > without*12/10 {
			t.Errorf("late, a commit takes %v; without the snapshot %v", with, without)
		}
	}
	held.sql("analyze epochfence.fence") // plans must not depend on it
	const most = 50                      // a claim reads 37, and some more while others change the catalog
	for what, pages := range held.pages(t) {
		if t.Logf("%s reads %d pages", what, pages); pages > most {
			t.Errorf("%s reads %d pages after %d commits; want no more than %d", what, pages, commits, most)
		}
	}
}

type committing struct {
	*rig
	sink  *pgsink.Sink
	fence epoch.Fence
}

func newCommitting(t *testing.T) *committing {
	c := &committing{rig: newRig(t)}
	c.sink = c.openOn(c.pool(fast))
	seed(t, c.sink, orders)
	c.fence = claim(t, c.sink, orders, 5)
	return c
}

func (c *committing) holdSnapshot(t *testing.T) {
	conn := c.db.Superuser(t)
	_, err := conn.Exec(t.Context(), "begin isolation level repeatable read; select from pg_class limit 1")
	must(t, err)
}

// commit commits messages one by one, and returns the mean time.
func (c *committing) commit(t *testing.T, n int) time.Duration {
	began := time.Now()
	for range n {
		err := c.sink.Queued().Commit(t.Context(), advance(c.fence, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return put(ctx, q, "list", "message") })
		must(t, err)
		c.fence.Next++
	}
	return time.Since(began) / time.Duration(n)
}

// pages returns how many pages statements read at most: advances leave their page now and then. The
// few that read more may have planned again.
func (c *committing) pages(t *testing.T) map[string]int {
	const args = `$1::text, $2::text, $3::int, $4::text::uuid`
	const arrays = `array[$1::text], array[$2::text], array[$3::int], array[$4::text::uuid], array[$5::bigint]`
	const mine = `pg_current_xact_id()::text::bigint, 0, 'nonce'`
	conn := c.db.Superuser(t)
	found := map[string]int{}
	for _, s := range []struct {
		what, sql string
		moves     epoch.Offset
	}{
		{"an advance", `select epochfence.advance_one(` + args + `, $5::bigint, $5::bigint + 1, -1, ` + mine + `, false)`, 1},
		{"an advance among several", `select epochfence.advance(` + arrays + `, array[$5::bigint + 1], array[-1::bigint], ` + mine + `, false)`, 1},
		{"the early look", `select epochfence.look_early(` + arrays + `, '')`, 0},
		{"a hold", `select epochfence.hold(` + args + `, ` + mine + `) where $5::bigint >= 0`, 0},
		{"a read", `select epochfence.read_fence($1::text, $2::text, $3::int) where ($4::text, $5::bigint) is not null`, 0},
		{"a read of several", `select epochfence.read_fences(array[$1::text], array[$2::text], array[$3::int]) where ($4::text, $5::bigint) is not null`, 0},
		{"a claim", `select epochfence.claim($1::text, $2::text, $3::int, 1000, f.epoch, f.claim_id, 'log', 'source', 5, 0, 'owner', gen_random_uuid(), null, cast(null as bigint), '')
			from epochfence.read_fence($1::text, $2::text, $3::int) f where ($4::text, $5::bigint) is not null`, 0},
	} {
		const times, few = 300, 5
		p, read := c.fence.Partition, make([]int, times)
		for i := range read {
			read[i] = explain(t, conn, s.sql, p.Group, p.Topic, p.Number, c.fence.Claim.String(), int64(c.fence.Next))
			c.fence.Next += s.moves
		}
		slices.Sort(read)
		found[s.what] = read[times-1-few]
	}
	return found
}

// explain runs sql and returns the pages that it has read.
func explain(t *testing.T, conn *pgx.Conn, sql string, args ...any) int {
	t.Helper()
	var text []byte
	must(t, conn.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&text))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	must(t, json.Unmarshal(text, &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// Signs of life of other processes are as many versions of rows.
func TestAnOldSnapshotDoesNotSlowSignsOfLife(t *testing.T) {
	t.Parallel()
	c := newCommitting(t)
	c.holdSnapshot(t)
	conn := c.db.Superuser(t)
	sign := func(run int) int {
		writes := explain(t, conn, "select epochfence.write_row('process', 0, 0, false, 'run-' || $1::int, 'billing', '', 0, 0, 0, '', '', 'process-' || $1::int, '{}', null, null, null)", run)
		return writes + explain(t, conn, "select from epochfence.rows('process', null, null, 'process-' || $1::int, 'billing', null, null, null, null, null, null, false, null)", run)
	}
	for run := range 100 {
		sign(run)
	}
	c.sql(`do $$ declare place tid; begin
		select ctid into place from epochfence.fence_ledger where name = 'run-0';
		for i in 1 .. 20000 loop update epochfence.fence_ledger set changed_at = clock_timestamp() where ctid = place returning ctid into place; end loop; end $$`)
	c.sql("analyze epochfence.fence_ledger")
	var read []int
	for range 50 {
		read = append(read, sign(1))
	}
	slices.Sort(read)
	if t.Logf("a sign reads %v pages", read); read[25] > 40 {
		t.Errorf("half of the signs read %d pages or more; want no more than 40", read[25])
	}
}

// A row that leaves its page while a transaction holds the claim stays in its lap, because a change
// of the key would wait.
func TestAnAdvanceThatLeavesItsPagePassesBesideATransactionThatHoldsItsClaim(t *testing.T) {
	t.Parallel()
	c := newCommitting(t)
	freezeHeld(t, connect(t, c.appURL), c.fence, "list", "never committed") // also keeps all versions
	c.commit(t, 100)
	var page, lap int
	must(t, c.reader.QueryRow(t.Context(), "select (ctid::text::point)[0]::int, lap from epochfence.fence").Scan(&page, &lap))
	if page == 0 || lap != 0 {
		t.Errorf("the row is on page %d, in lap %d; want another page, and lap 0", page, lap)
	}
}

func TestNoSecondFenceOfAPartitionGetsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	r.sql("update epochfence.fence set lap = 7, next_offset = 3")
	seed(t, s, orders)
	if f := claim(t, s, orders, 5); f.Next != 3 {
		t.Errorf("after another seed: %+v", f)
	}
	_, err := r.admin.Exec(t.Context(), "insert into epochfence.fence (group_name, topic, partition, log_id, lease_source, next_offset) values ('billing', 'orders', 3, '', '', 0)")
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "23505" {
		t.Errorf("an insert: %v", err)
	}
}
