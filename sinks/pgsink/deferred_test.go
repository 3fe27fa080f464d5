package pgsink_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestADeferredMessageIsDueByTheServersClock: nothing that an application sends has a time of its own clock. What it
// says of a row's times is ignored, and it cannot take a message before it is due.
func TestADeferredMessageIsDueByTheServersClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	records := operate.RecordsIn[pgsink.Tx](s)
	must(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		return records.Defer(ctx, tx, of(f, hostile), f.Epoch, errors.New("later"), time.Hour)
	}))
	f.Next++
	requested := func(want int) []operate.Row {
		t.Helper()
		_, rows, err := s.Requests(t.Context(), []epoch.Partition{orders})
		if err != nil || len(rows) != want {
			t.Fatalf("%d rows, want %d: %+v, %v", len(rows), want, rows, err)
		}
		return rows
	}
	requested(0)
	rows, err := s.Rows(t.Context(), operate.RowQuery{Kind: operate.KindLetter})
	if err != nil || len(rows) != 1 || rows[0].State != operate.StateDeferred {
		t.Fatalf("the rows are %+v, %v", rows, err)
	}
	early := rows[0]
	early.Changed, early.Now, early.Body = time.Time{}, time.Now().Add(48*time.Hour), []byte(`{"delay_ms": 0}`)
	for _, c := range []operate.Change{{Row: early, Remove: true}, {Row: early}} {
		if err := s.Write(t.Context(), c); !errors.Is(err, operate.ErrRowChanged) {
			t.Errorf("a message is taken before it is due: %v", err)
		}
	}
	r.sql("update epochfence.fence_deferred set due_at = due_at - interval '59 minutes'")
	requested(0)
	r.sql("update epochfence.fence_deferred set due_at = due_at - interval '2 minutes'")
	requested(1)
	must(t, s.Write(t.Context(), operate.Change{Row: rows[0], Remove: true}))
	var left int
	must(t, r.admin.QueryRow(t.Context(), "select count(*) from epochfence.fence_deferred").Scan(&left))
	if left != 0 {
		t.Errorf("%d due times are left of what is gone", left)
	}
}

// TestWhatIsDeferredCostsAPollLittle: it reads in an index what is due, and not what waits.
func TestWhatIsDeferredCostsAPollLittle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`alter table epochfence.fence_ledger disable trigger all;
		insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, body)
			select 'dead-letter', '', 'billing', 'orders', n % 10, 1, n, 'deferred', 'later', '', '{"delay_ms": 3600000, "deferred": 1}' from generate_series(1, 30000) n;
		insert into epochfence.fence_deferred select id, group_name, topic, partition, clock_timestamp() + interval '1 hour' from epochfence.fence_ledger where state = 'deferred';
		analyze epochfence.fence_ledger, epochfence.fence_deferred`)
	conn := r.db.Superuser(t)
	const poll = "select from epochfence.requests(array_fill('billing'::text, array[10]), array_fill('orders'::text, array[10]), array[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 8, 32)"
	explain(t, conn, poll) // also reads the catalog
	if pages := explain(t, conn, poll); pages > 200 {
		t.Errorf("a poll reads %d pages while nothing is due; want no more than 200", pages)
	}
	r.sql("update epochfence.fence_deferred set due_at = clock_timestamp() where id % 7 = 0")
	var given, partitions int
	must(t, conn.QueryRow(t.Context(), "select count(*), count(distinct partition) from ("+
		"select partition from epochfence.requests(array['billing', 'billing', 'billing', 'billing', 'billing'], array['orders', 'orders', 'orders', 'orders', 'orders'], array[0, 1, 2, 3, 4], 8, 32)"+
		" where id is not null) r").Scan(&given, &partitions))
	if given != operate.ReplaysMost || partitions != 5 {
		t.Errorf("a poll gives %d messages of %d partitions", given, partitions)
	}
}
