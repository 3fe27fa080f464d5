package docs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// upgraded is a group whose handler writes to PostgreSQL and, through guard, to a store.
type upgraded struct {
	*testing.T
	pool  *pgxpool.Pool
	store cas.Store
	log   *memsource.Log
}

func (u upgraded) sink(schema string) *pgsink.Sink {
	u.Helper()
	if err := pgsink.Migrate(u.Context(), u.pool, pgsink.Options{Schema: schema}); err != nil {
		u.Fatal(err)
	}
	sink, err := pgsink.Open(u.Context(), u.pool, pgsink.Options{Schema: schema})
	if err != nil {
		u.Fatal(err)
	}
	return sink
}

// runs starts a process of the group. It returns a function that ends it.
func (u upgraded) runs(schema, member string, h consumer.Handler[pgsink.Tx]) (end func()) {
	u.Helper()
	ctx, stop := context.WithCancel(u.Context())
	ended := make(chan error, 1)
	sink, handlers := u.sink(schema), consumer.Each(h)
	if member != "helper" {
		handlers = handlers.OnFailure(sink.DeadLetter)
	}
	go func() {
		ended <- consumer.Run(ctx, u.log.Group("billing").Member(member), sink, handlers, consumer.Options{
			MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler),
		})
	}()
	return func() {
		u.Helper()
		stop()
		if err := <-ended; err != nil {
			u.Errorf("%s: %v", member, err)
		}
	}
}

func (u upgraded) ship(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	_, err := guard.At(u.store, m).Update(ctx, "shipped", func(old guard.State) (guard.State, []byte, error) {
		return guard.Text(string(old.Value) + string(m.Value)), nil, nil
	})
	if err != nil {
		return err
	}
	return ship(ctx, tx, string(m.Value))
}

func (u upgraded) act(schema string, kind operate.ActKind, to *epoch.Position) epoch.Fence {
	u.Helper()
	op, err := pgsink.OpenOperator(u.Context(), u.pool, pgsink.Options{Schema: schema})
	if err != nil {
		u.Fatal(err)
	}
	p, err := op.Partition(u.Context(), epoch.Partition{Group: "billing", Topic: "orders"})
	if err != nil {
		u.Fatal(err)
	}
	a := operate.NewAct(kind, p.Fence, "anna", "upgrade")
	a.To = to
	f, err := op.Act(u.Context(), a)
	if err != nil {
		u.Fatal(err)
	}
	return f
}

// A schema that cannot be migrated is replaced by another one. A process that was frozen all the while changes
// nothing, also as a new process of the old version.
func TestASchemaIsReplacedAsTheGuideSays(t *testing.T) {
	u := upgraded{t, database(t, "dedupe.sql"), memstore.New(), memsource.New("orders", 1)}
	u.log.Append(0, "a")
	end := u.runs("epochfence", "old", u.ship)
	const shipped = "select string_agg(order_id, '' order by id) from shipment"
	await(t, u.pool, shipped, "a")
	end()
	if _, err := u.pool.Exec(t.Context(), "update epochfence.fence set epoch = 40, set_under = 39"); err != nil {
		t.Fatal(err)
	}
	u.log.Append(0, "b")
	end = u.runs("epochfence", "old, again", u.ship)
	await(t, u.pool, shipped, "ab")
	end()
	frozen, err := u.sink("epochfence").Fence(t.Context(), epoch.Partition{Group: "billing", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	paused := u.act("epochfence", operate.ActPause, nil)

	end = u.runs("epochfence2", "helper", func(context.Context, pgsink.Tx, consumer.Message, epoch.Epoch) error {
		return errors.New("not yet")
	})
	await(t, u.pool, "select count(*)::text from epochfence2.fence where epoch > 0", "1")
	u.act("epochfence2", operate.ActRewind, &epoch.Position{Offset: paused.Next, Mark: epoch.NoMark})
	next := epoch.Position{Mark: epoch.NoMark}
	unclaimed := epoch.Start{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "refunds"}, Log: "log", Source: "source"}, Next: next, Earliest: next}
	if err := u.sink("epochfence2").Seed(t.Context(), []epoch.Start{unclaimed}); err != nil {
		t.Fatal(err)
	}
	if _, err := u.pool.Exec(t.Context(), script(t, "raise_epochs.sql")); err != nil {
		t.Fatal(err)
	}
	end()
	await(t, u.pool, "select epoch::text from epochfence2.fence where topic = 'refunds'", "0")

	const step = 1_790_000_000_000_003
	for schema, mark := range map[string]epoch.Mark{"epochfence": 2, "epochfence2": epoch.NoMark} {
		job := epoch.Start{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "invoices"}, Log: operate.JobLog, Source: "source"}}
		job.Next = epoch.Position{Offset: step, Mark: mark}
		job.Earliest = job.Next
		if err := u.sink(schema).Seed(t.Context(), []epoch.Start{job}); err != nil {
			t.Fatal(err)
		}
	}
	number := func(schema string) (n int64) {
		t.Helper()
		if err := u.pool.QueryRow(t.Context(), fmt.Sprintf("select nextval(pg_get_serial_sequence('%s.fence_ledger', 'id'))", schema)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	counted := number("epochfence")
	for _, name := range []string{"job_marks.sql", "dead_letter_numbers.sql"} {
		if _, err := u.pool.Exec(t.Context(), script(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, u.pool, "select next_offset || ' ' || mark from epochfence2.fence where topic = 'invoices'", "1790000000000003 2")
	if n := number("epochfence2"); n != counted+2 {
		t.Errorf("the next dead letter is number %d; want %d", n, counted+2)
	}

	old := u.sink("epochfence")
	err = old.Commit(t.Context(), []epoch.Advance{{Partition: frozen.Partition, Claim: frozen.Claim, From: frozen.Next, To: frozen.Next + 1, Mark: epoch.NoMark}}, epoch.TxOptions{})
	if !errors.Is(err, epoch.ErrStale) {
		t.Errorf("a commit of a frozen process: %v, want %v", err, epoch.ErrStale)
	}
	lease := epoch.Lease{Origin: frozen.Origin, Generation: paused.Generation + 9, Owner: "old"}
	if _, err = old.Claim(t.Context(), paused, epoch.Claim{Lease: lease, ID: epoch.NewClaimID()}); !errors.Is(err, epoch.ErrPaused) {
		t.Errorf("a claim of a process of the old version: %v, want %v", err, epoch.ErrPaused)
	}

	u.log.Append(0, "c")
	end = u.runs("epochfence2", "new", u.ship)
	await(t, u.pool, "select next_offset::text from epochfence2.fence where topic = 'orders'", "3")
	end()
	await(t, u.pool, shipped, "abc") // or c would be a dead letter
	if s, err := guard.Read(t.Context(), u.store, "shipped"); err != nil || string(s.Value) != "abc" {
		t.Errorf("the store has %q, %v; want each once", s.Value, err)
	}
}
