package stock

import (
	"context"
	"database/sql"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// newTestDatabase is what the show's parent makes, with a few items: in SQLite, or at a URL.
func newTestDatabase(t *testing.T, url string) sqlBooks {
	t.Helper()
	d, err := show.NewDatabase(t.Context(), &show.Settings{Database: url, Dir: t.TempDir()}, "inventory-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Drop(); err != nil {
			t.Error(err)
		}
	})
	b := sqlBooks{&show.Column{DB: d}}
	if err := b.create(t.Context(), testItems); err != nil {
		t.Fatal(err)
	}
	return b
}

// testLog holds so many reservations of testSeed on two partitions.
func testLog(t *testing.T, n int) (*memsource.Log, []place) {
	t.Helper()
	log := memsource.New("reservations", 2)
	sent := make([]place, n)
	for i, m := range testMessages(t, n) {
		p := m.Partition.Number
		sent[i] = place{p, int64(log.AppendMessages(p, m))}
	}
	return log, sent
}

func testMessages(t *testing.T, n int) []consumer.Message {
	t.Helper()
	ms := make([]consumer.Message, n)
	for i := range ms {
		value, err := json.Marshal(reservation(testSeed, i, testItems))
		if err != nil {
			t.Fatal(err)
		}
		ms[i] = consumer.Message{Partition: epoch.Partition{Number: int32(i % 2)}, Value: value}
	}
	return ms
}

// takesStockOnce runs a consumer, and compares the books with the messages.
func takesStockOnce[TX any](t *testing.T, b books, sink epoch.Sink[TX], handlers consumer.Handlers[TX], o consumer.Options) (sent []place) {
	t.Helper()
	log, sent := testLog(t, 50)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := consumer.Run(log.UntilApplied(ctx), log.Member("m"), sink, handlers, o); err != nil {
		t.Fatal(err)
	}
	v, err := judge(t.Context(), b, testSeed, testItems, sent)
	if err != nil || !v.exact() || !v.Epochs {
		t.Errorf("%+v, %v", v, err)
	}
	if n, err := b.applied(t.Context()); n != 50 || err != nil {
		t.Errorf("%d are applied, %v", n, err)
	}
	for worker, want := range map[string]bool{"worker 7": false, "worker 8": true} {
		if found, err := b.elsewhere(t.Context(), place{1, 24}, worker); found != want || err != nil {
			t.Errorf("elsewhere than %s: %t, %v", worker, found, err)
		}
	}
	return sent
}

func TestTheSQLiteHandlerTakesStockOnceForEachReservation(t *testing.T) {
	b := newTestDatabase(t, "")
	sink, err := sqlsink.Open(t.Context(), b.DB.DB, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	handlers := consumer.Each(reserve[*sqlsink.Tx]("worker 7"))
	consumertest.Check(t, sink, handlers, testMessages(t, 20), consumertest.SQLite(b.DB.DB), consumertest.Options{})
	takesStockOnce(t, b, sink, handlers, consumer.Options{})
}

func TestThePostgresHandlerTakesStockOnceForEachReservation(t *testing.T) {
	b := newTestDatabase(t, pgtest.Start(t).URL)
	sink, err := pgsink.Open(t.Context(), b.DB.Pool, pgsink.Options{Schema: b.DB.Schema})
	if err != nil {
		t.Fatal(err)
	}
	handlers := consumer.Batches(reserveAll("worker 7"))
	consumertest.Check(t, sink, handlers, testMessages(t, 20), pgtables.Of(b.DB.Pool), consumertest.Options{})
	takesStockOnce(t, b, sink, handlers, consumer.Options{})
}

func TestTheHandlerOfAStoreTakesStockOnceForEachReservation(t *testing.T) {
	b := newTestItems(t)
	sink, err := cassink.Open(t.Context(), b.store, cassink.Options{Prefix: fences(b.ID)})
	if err != nil {
		t.Fatal(err)
	}
	sent := takesStockOnce(t, b, sink, consumer.Batches(reserveItems(prefix(b.ID), "worker 7")), consumer.Options{Guarantee: epoch.PerItem})
	disorder(t, b, sent)
	if err := b.remove(t.Context()); err != nil {
		t.Error(err)
	}
	for item, err := range b.store.List(t.Context(), "") {
		t.Errorf("%s is left, %v", item.Key, err)
	}
}

var badMessages = []string{"", "{", `{"id":"x"}`, `{"id":1,"item":"no such item","quantity":1}`}

func TestTheHandlersRefuseBadMessagesAndWriteNothing(t *testing.T) {
	sqlite, postgres, items := newTestDatabase(t, ""), newTestDatabase(t, pgtest.Start(t).URL), newTestItems(t)
	for name, c := range map[string]struct {
		books
		handle func(m consumer.Message) error
	}{
		"SQLite": {sqlite, func(m consumer.Message) error {
			tx, err := sqlite.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Commit() }() // as if nobody had looked at the error
			return reserve[*sql.Tx]("worker 7")(t.Context(), tx, m, 1)
		}},
		"PostgreSQL": {postgres, func(m consumer.Message) error {
			return pgx.BeginFunc(t.Context(), postgres.DB.Pool, func(tx pgx.Tx) error {
				return reserveAll("worker 7")(t.Context(), tx, []consumer.Message{m}, 1)
			})
		}},
		"store": {items, func(m consumer.Message) error {
			return replaceItem(t.Context(), items.store, prefix(items.ID), m, 1, "w")
		}},
	} {
		for _, value := range badMessages {
			if err := c.handle(consumer.Message{Value: []byte(value)}); err == nil {
				t.Errorf("%s: %q: no error", name, value)
			}
		}
		err := c.read(t.Context(), func(l line) { t.Errorf("%s: %+v is written", name, l) }, func(item string, present int64) {
			if present != initial {
				t.Errorf("%s: %d of %s", name, present, item)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
