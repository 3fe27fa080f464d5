package sqlc_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/contrib/workswith/sqlc"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// A Tx is what generated code calls a DBTX, without an adapter.
var _ sqlc.DBTX = pgsink.Tx(nil)

const tables = `
	create table stock (item int primary key, left_over int not null);
	insert into stock values (1, 100), (2, 100);
	create table deduction (n bigint generated always as identity, item int not null, quantity int not null, epoch bigint not null)`

func TestCodeThatSqlcGeneratesRunsOnATx(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	origin := epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "log", Source: "kafka group billing"}
	if err := sink.Seed(t.Context(), []epoch.Start{{Origin: origin}}); err != nil {
		t.Fatal(err)
	}
	seen, err := sink.Fence(t.Context(), origin.Partition)
	if err != nil {
		t.Fatal(err)
	}
	f, err := sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 5, Owner: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	err = sink.Commit(t.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1}}, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		q := sqlc.New(tx)
		left, err := q.Deduct(ctx, sqlc.DeductParams{Item: 1, LeftOver: 3})
		if err != nil || left != 97 {
			t.Errorf(":one: %d, %v", left, err)
		}
		if err := q.Record(ctx, sqlc.RecordParams{Item: 1, Quantity: 3, Epoch: int64(f.Epoch)}); err != nil {
			t.Errorf(":exec: %v", err)
		}
		n, err := q.RecordAll(ctx, []sqlc.RecordAllParams{{Item: 2, Quantity: 1, Epoch: 5}, {Item: 2, Quantity: 2, Epoch: 5}})
		if err != nil || n != 2 {
			t.Errorf(":copyfrom: %d, %v", n, err)
		}
		q.Restock(ctx, []sqlc.RestockParams{{Item: 1, LeftOver: 10}, {Item: 2, LeftOver: 20}}).Exec(func(i int, err error) {
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
	var left, deductions int
	err = pool.QueryRow(t.Context(), "select (select left_over from stock where item = 1), (select count(*) from deduction)").Scan(&left, &deductions)
	if err != nil || left != 107 || deductions != 3 {
		t.Errorf("%d are left, %d deductions, %v", left, deductions, err)
	}
}
