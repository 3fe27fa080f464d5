package pgsink_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// BenchmarkProtectedTable compares fenced transactions that write to a protected table with those
// that write to another one, in turns on one connection, without fsync. The metric is the median of
// the pairs' ratios of time.
//
//	go test ./sinks/pgsink -run '^$' -bench ProtectedTable -benchtime 2000x
func BenchmarkProtectedTable(b *testing.B) {
	for _, c := range []struct{ statements, rows int }{{1, 1}, {16, 1}, {1, 100}, {1, 10_000}} {
		b.Run(fmt.Sprintf("%d statements of %d rows", c.statements, c.rows), func(b *testing.B) {
			r := newRig(b)
			r.sql("create table plain (n int, filler text); create table guarded (n int, filler text); grant insert on plain, guarded to " + r.role)
			r.protect("guarded", pgsink.Protection{Refuse: true})
			s := r.open()
			seed(b, s, orders)
			f := claim(b, s, orders, 5)
			transaction := func(table string) time.Duration {
				sql := fmt.Sprintf("insert into %s select g, 'filler' from generate_series(1, %d) g", table, c.rows)
				began := time.Now()
				must(b, s.Commit(b.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					for range c.statements {
						if _, err := tx.Exec(ctx, sql); err != nil {
							return err
						}
					}
					return nil
				}))
				f.Next++
				return time.Since(began)
			}
			compare(b, func() time.Duration { return transaction("guarded") }, func() time.Duration { return transaction("plain") })
		})
	}
}

// BenchmarkAdvanceThatNotesItself compares fenced transactions with those of a schema whose
// functions do not set epochfence.fenced.
func BenchmarkAdvanceThatNotesItself(b *testing.B) {
	var sinks []*pgsink.Sink
	var fences []epoch.Fence
	r := newRig(b)
	r.sql("create schema silent")
	must(b, pgsink.Migrate(b.Context(), r.admin, pgsink.Options{Schema: "silent"}))
	must(b, pgsink.Grant(b.Context(), r.admin, r.role, pgsink.Options{Schema: "silent"}))
	r.sql(`do $do$ begin
		execute replace(pg_get_functiondef('silent.advance_one'::regproc), 'fenced := set_config(''epochfence.fenced'', pg_current_xact_id()::text, true);', '');
		assert position('epochfence.fenced' in pg_get_functiondef('silent.advance_one'::regproc)) = 0; end $do$`)
	for _, schema := range []string{"epochfence", "silent"} {
		s := r.open(func(o *pgsink.Options) { o.Schema = schema })
		seed(b, s, orders)
		sinks, fences = append(sinks, s), append(fences, claim(b, s, orders, 5))
	}
	transaction := func(i int) time.Duration {
		began := time.Now()
		must(b, sinks[i].Commit(b.Context(), advance(fences[i], 1), epoch.TxOptions{}, putting("x", "y")))
		fences[i].Next++
		return time.Since(began)
	}
	compare(b, func() time.Duration { return transaction(0) }, func() time.Duration { return transaction(1) })
}

func compare(b *testing.B, ours, peer func() time.Duration) {
	var ratios, took, tookPeer []float64
	for i := range b.N {
		var x, y time.Duration
		if i%2 == 0 {
			x, y = ours(), peer()
		} else {
			y, x = peer(), ours()
		}
		ratios, took, tookPeer = append(ratios, float64(x)/float64(y)), append(took, float64(x)/1000), append(tookPeer, float64(y)/1000)
	}
	for _, all := range [][]float64{ratios, took, tookPeer} {
		slices.Sort(all)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratios[b.N/2], "ratio")
	b.ReportMetric(took[b.N/2], "µs")
	b.ReportMetric(tookPeer[b.N/2], "peer-µs")
}
