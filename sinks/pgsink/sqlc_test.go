package pgsink_test

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/pgsink/internal/sqlcgen"
)

// A Tx is what generated code calls a DBTX, without an adapter.
var _ sqlcgen.DBTX = pgsink.Tx(nil)

func TestCodeThatSqlcGeneratesRunsOnATx(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`create table deduction (n bigint generated always as identity, item int not null, quantity int not null, epoch bigint not null);
		grant select, insert on deduction to ` + r.role)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx pgsink.Tx) error {
		q := sqlcgen.New(tx)
		left, err := q.Deduct(ctx, sqlcgen.DeductParams{Item: 1, LeftOver: 3})
		if err != nil || left != 97 {
			t.Errorf(":one: %d, %v", left, err)
		}
		if err := q.Record(ctx, sqlcgen.RecordParams{Item: 1, Quantity: 3, Epoch: int64(f.Epoch)}); err != nil {
			t.Errorf(":exec: %v", err)
		}
		n, err := q.RecordAll(ctx, []sqlcgen.RecordAllParams{{Item: 2, Quantity: 1, Epoch: 5}, {Item: 2, Quantity: 2, Epoch: 5}})
		if err != nil || n != 2 {
			t.Errorf(":copyfrom: %d, %v", n, err)
		}
		q.Restock(ctx, []sqlcgen.RestockParams{{Item: 1, LeftOver: 10}, {Item: 2, LeftOver: 20}}).Exec(func(i int, err error) {
			if err != nil {
				t.Errorf(":batchexec %d: %v", i, err)
			}
		})
		all, err := q.Stock(ctx)
		if err != nil || len(all) != 2 || all[0].LeftOver != 107 || all[1].LeftOver != 120 {
			t.Errorf(":many: %v, %v", all, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantStock(r, 107)
	var n int
	if err := r.admin.QueryRow(t.Context(), "select count(*) from deduction").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d deductions, %v", n, err)
	}
}
