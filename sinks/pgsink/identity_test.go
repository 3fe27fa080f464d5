package pgsink_test

import (
	"context"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// remedy is the statement that an error about an identity tells.
func remedy(t *testing.T, err error) string {
	t.Helper()
	wantBlame(t, "an identity that is behind", err, epoch.ErrUnhealthy)
	_, sql, found := strings.Cut(err.Error(), "run as the owner: ")
	sql, _, _ = strings.Cut(sql, " (SQLSTATE")
	if !found {
		t.Fatalf("err = %v; want the remedy in it", err)
	}
	return sql
}

// TestAnIdentityThatIsBehindItsRowsIsFoundBeforeTheFirstNewOne, as it is after logical
// replication, which copies rows and no sequences; and the statement in the error fixes it.
func TestAnIdentityThatIsBehindItsRowsIsFoundBeforeTheFirstNewOne(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"", `it's "Größe"`} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			r := newRigIn(t, schema)
			s := r.open()
			seed(t, s, orders)
			f := claim(t, s, orders, 5)
			dead := func() error {
				err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile)
				})
				if err == nil {
					f.Next++
				}
				return err
			}
			for range 3 {
				must(t, dead())
				f = claim(t, s, orders, 5)
			}
			reset := func(table string) { r.sql("alter table " + r.table(table) + " alter id restart") }
			open := func() error {
				_, err := pgsink.Open(t.Context(), r.pool(), pgsink.Options{Schema: schema})
				return err
			}

			reset("fence_ledger")
			sql := remedy(t, open())
			_, err := tryClaim(t.Context(), s, orders, 6) // of a process that runs on
			if remedy(t, err) != sql {
				t.Errorf("a claim: err = %v; want %q in it", err, sql)
			}
			if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
				t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
			}
			r.sql(sql)
			must(t, open())
			f = claim(t, s, orders, 6)

			reset("fence_ledger")
			sql = remedy(t, open())
			if remedy(t, dead()) != sql {
				t.Error("a dead letter and Open do not say the same")
			}
			r.sql(sql)
			must(t, open())
			must(t, dead())
			if op := r.operator(t); len(r.letters(op)) != 4 {
				t.Errorf("%d dead letters; want 4", len(r.letters(op)))
			}
		})
	}
}

// TestIdentitiesAreLookedAtWhenTheServerIsAnotherOne: before a claim is made there.
func TestIdentitiesAreLookedAtWhenTheServerIsAnotherOne(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.openOn(r.pool(mode))
			seed(t, s, orders)
			claim(t, s, orders, 5)
			claim(t, s, orders, 5)
			r.sql("alter table epochfence.fence_ledger alter id restart")
			if _, err := epoch.FenceOf(t.Context(), s, orders); err != nil {
				t.Errorf("looked at again though the server is the same: %v", err)
			}
			r.anotherServer()
			_, err := epoch.FenceOf(t.Context(), s, orders)
			sql := remedy(t, err)
			_, err = epoch.FenceOf(t.Context(), s, orders)
			remedy(t, err) // until it is fixed
			r.sql(sql)
			claim(t, s, orders, 5)
		})
	}
}

// TestRowsThatAreNumberedAtATimeDoNotRefuseEachOther: one that commits late, under a lower
// number, is in order.
func TestRowsThatAreNumberedAtATimeDoNotRefuseEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	shipping := orders
	shipping.Group = "shipping"
	seed(t, s, orders, shipping)
	a, b := claim(t, s, orders, 5), claim(t, s, shipping, 5)
	dead := func(f epoch.Fence, beside func()) error {
		return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			for range 2 {
				if err := s.DeadLetter(ctx, tx, epoch.Message{Partition: f.Partition}, f.Epoch, errHostile); err != nil {
					return err
				}
				beside()
			}
			return nil
		})
	}
	must(t, dead(a, func() {
		must(t, dead(b, func() {}))
		b.Next++
	}))
}

func (r *rig) table(name string) string {
	if r.schema == "" {
		return "epochfence." + name
	}
	return `"` + strings.ReplaceAll(r.schema, `"`, `""`) + `".` + name
}

// anotherServer has the server say that it is another one than before.
func (r *rig) anotherServer() {
	r.Helper()
	r.sql(`create or replace function epochfence.server(out system bigint, out timeline bigint, out started timestamptz)
		language sql stable as $$ select 1::bigint, 2::bigint, timestamptz '2026-01-01' $$`)
}
