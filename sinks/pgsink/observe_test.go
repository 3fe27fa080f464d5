package pgsink_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/sinks/pgsink"
)

// observed is a migrated database, and the role of a consumer without a fence.
func observed(t testing.TB) (r *rig, old *pgxpool.Pool) {
	r = newRig(t)
	role, url := r.db.Role(t)
	r.grant(pgsink.GrantObserverSQL, role)
	r.sql("grant select, insert, update on effects, stock to " + role)
	return r, newPool(t, url)
}

const note = "select epochfence.observe('shipping', 'orders', 3, 100, 149, 7, 'worker-a')"

func (r *rig) number(sql string, args ...any) (n int64) {
	r.Helper()
	must(r, r.reader.QueryRow(r.Context(), sql, args...).Scan(&n))
	return n
}

func TestAnObservationIsARowOfItsTransaction(t *testing.T) {
	t.Parallel()
	r, old := observed(t)
	var said *string
	var own int64
	must(t, pgx.BeginFunc(t.Context(), old, func(tx pgx.Tx) error {
		must(t, tx.QueryRow(t.Context(), "select pg_current_xact_id()::text::bigint").Scan(&own))
		return tx.QueryRow(t.Context(), "select epochfence.observe('shipping', 'orders', 3, 100, 102, 7, 'worker-a', array['order-1', 'order-2', 'order-1'], 1)").Scan(&said)
	}))
	if said != nil {
		t.Fatal(*said)
	}
	rolledBack := fmt.Errorf("rolled back")
	if err := pgx.BeginFunc(t.Context(), old, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), note)
		must(t, err)
		return rolledBack
	}); err != rolledBack {
		t.Fatal(err)
	}
	var row string
	must(t, r.reader.QueryRow(t.Context(), `select concat_ws(' ', group_name, topic, partition, first_offset, last_offset, generation, process, cardinality(ids), ids[1] = ids[3], ids[1] = ids[2], caught,
		tx::text::bigint = $1, at > now() - interval '1 minute') from epochfence.observations(null, null, null)`, own).Scan(&row))
	if want := "shipping orders 3 100 102 7 worker-a 3 t f 1 t t"; row != want {
		t.Errorf("noted %s, want %s", row, want)
	}
	for _, sql := range []string{"select * from epochfence.observed", "select epochfence.prune_observed(1)", "select * from epochfence.observations(null, null, null)", "select * from epochfence.read_fence('a', 'b', 0)"} {
		if _, err := old.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: err = %v", sql, err)
		}
	}
}

func TestNoErrorOfObserveFailsTheTransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, call, says string }{
		"no group":                  {"", "select epochfence.observe(null, 'orders', 3, 100, 149, 7, 'worker-a')", "null value"},
		"no offset":                 {"", "select epochfence.observe('shipping', 'orders', 3, null, 149, 7, 'worker-a')", "null value"},
		"the last before the first": {"", "select epochfence.observe('shipping', 'orders', 3, 149, 100, 7, 'worker-a')", "the first offset is 149, the last 100"},
		"the table is gone":         {"drop table epochfence.observed cascade", note, "does not exist"},
		"the table is full":         {"alter table epochfence.observed add check (last_offset < 149)", note, "violates check constraint"},
		"a setting is no interval": {`select setval('epochfence.observed_id_seq', 127); alter database ` + "%s" + ` set epochfence.observe_keep = 'long'`,
			note, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, old := observed(t)
			if strings.Contains(c.before, "%s") {
				var name string
				must(t, r.admin.QueryRow(t.Context(), "select quote_ident(current_database())").Scan(&name))
				c.before = fmt.Sprintf(c.before, name)
			}
			if c.before != "" {
				r.sql(c.before)
			}
			var said *string
			must(t, pgx.BeginFunc(t.Context(), old, func(tx pgx.Tx) error {
				must(t, tx.QueryRow(t.Context(), c.call).Scan(&said))
				_, err := tx.Exec(t.Context(), "insert into effects (list, value) values ('a', 'b')")
				return err
			}))
			if (said == nil) != (c.says == "") || said != nil && (!strings.HasPrefix(*said, "not noted: ") || !strings.Contains(*said, c.says)) {
				t.Errorf("it says %v, want %q", said, c.says)
			}
			if n := r.number("select count(*) from effects"); n != 1 {
				t.Errorf("%d effects", n)
			}
			if c.says == "" && r.number("select count(*) from epochfence.observed") != 1 {
				t.Error("the row is gone")
			}
		})
	}
}

// While each other session holds what it may hold, both for the time of the call and for longer.
func TestObserveWaitsForNoOtherTransaction(t *testing.T) {
	t.Parallel()
	r, old := observed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := func(pool *pgxpool.Pool) pgx.Tx {
		tx, err := pool.Begin(ctx)
		must(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}
	first := begin(old)
	_, err := first.Exec(ctx, note)
	must(t, err)
	r.sql("insert into epochfence.observed (at, group_name, topic, partition, first_offset, last_offset, generation, process, tx, snapshot, caught) " +
		"select now() - interval '3 days', 'old', '', 0, 0, 0, 0, '', '3', pg_current_snapshot(), 0 from generate_series(1, 10)")
	r.sql("select setval('epochfence.observed_id_seq', 127)")
	holder := begin(r.reader)
	_, err = holder.Exec(ctx, "select from epochfence.observed where group_name = 'old' and id <= 6 for update")
	must(t, err)
	if _, err := old.Exec(ctx, note); err != nil { // the same messages, and it prunes
		t.Fatal(err)
	}
	if n := r.number("select count(*) from epochfence.observed where group_name = 'old'"); n == 0 || n == 10 {
		t.Errorf("%d expired rows of 10 are left beside a session that has locked some", n)
	}
	must(t, holder.Rollback(ctx))

	exclusive := begin(r.reader)
	must(t, first.Commit(ctx))
	_, err = exclusive.Exec(ctx, "lock table epochfence.observed in access exclusive mode")
	must(t, err)
	var said *string
	must(t, old.QueryRow(ctx, note).Scan(&said))
	if said == nil || !strings.Contains(*said, "lock timeout") {
		t.Errorf("with the table locked it says %v", said)
	}
	must(t, exclusive.Rollback(ctx))
}

func TestObservedSerializableTransactionsDoNotFailEachOther(t *testing.T) {
	t.Parallel()
	r, old := observed(t)
	var group sync.WaitGroup
	var stalled atomic.Int64 // a server that stands still while it extends the table
	for worker := range 4 {
		group.Go(func() {
			for n := range 100 {
				err := pgx.BeginTxFunc(t.Context(), old, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					var said *string
					err := tx.QueryRow(t.Context(), "select epochfence.observe('shipping', 'orders', $1, $2, $2, 7, $3)", worker, n, fmt.Sprint(worker)).Scan(&said)
					switch {
					case said != nil && strings.Contains(*said, "lock timeout"):
						stalled.Add(1)
					case said != nil:
						t.Error(*said)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := r.number("select count(*) from epochfence.observed"); n != 400-stalled.Load() || n < 200 {
		t.Errorf("%d rows, and %d were not noted", n, stalled.Load())
	}
}

func TestObservationsAreBoundedByAge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keep string
		left int64
	}{{"", 0}, {"1 week", 600}} {
		r, old := observed(t)
		r.sql("insert into epochfence.observed (at, group_name, topic, partition, first_offset, last_offset, generation, process, tx, snapshot, caught) " +
			"select now() - interval '3 days', 'old', '', 0, 0, 0, 0, '', '3', pg_current_snapshot(), 0 from generate_series(1, 600)")
		must(t, pgx.BeginFunc(t.Context(), old, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "select set_config('epochfence.observe_keep', $1, true)", c.keep)
			must(t, err)
			_, err = tx.Exec(t.Context(), "select epochfence.observe('shipping', 'orders', 3, o, o + 0, 7, 'worker-a') from generate_series(1, 400) o")
			return err
		}))
		if left, noted := r.number("select count(*) from epochfence.observed where group_name = 'old'"), r.number("select count(*) from epochfence.observed where group_name = 'shipping'"); left != c.left || noted != 400 {
			t.Errorf("kept for %q: %d old rows and %d new ones are left, want %d and 400", c.keep, left, noted, c.left)
		}
	}
}

// BenchmarkObserve compares transactions that note themselves with those that do not, in turns on one connection,
// without fsync. The metric is the median of the pairs' ratios of time.
//
//	go test ./sinks/pgsink -run '^$' -bench '^BenchmarkObserve$' -benchtime 3000x
func BenchmarkObserve(b *testing.B) {
	for _, statements := range []int{1, 100} {
		b.Run(fmt.Sprint(statements, " statements"), func(b *testing.B) {
			_, old := observed(b)
			transaction := func(noted bool) time.Duration {
				began := time.Now()
				must(b, pgx.BeginFunc(b.Context(), old, func(tx pgx.Tx) error {
					for range statements {
						if _, err := tx.Exec(b.Context(), "insert into effects (list, value) values ('a', 'b')"); err != nil {
							return err
						}
					}
					if !noted {
						return nil
					}
					_, err := tx.Exec(b.Context(), note)
					return err
				}))
				return time.Since(began)
			}
			compare(b, func() time.Duration { return transaction(true) }, func() time.Duration { return transaction(false) })
		})
	}
}
