package stock

import (
	"context"
	"database/sql"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// newTestDatabase is what the show's parent makes, with a few items: in SQLite, or at a URL.
func newTestDatabase(t *testing.T, url string) *show.Database {
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
	if err := makeTables(t.Context(), &show.Column{DB: d}, testItems); err != nil {
		t.Fatal(err)
	}
	return d
}

// testLog holds so many reservations of testSeed on two partitions.
func testLog(t *testing.T, n int) (*memsource.Log, []place) {
	t.Helper()
	log := memsource.New("reservations", 2)
	sent := make([]place, n)
	for i := range sent {
		p := int32(i % 2)
		value, err := json.Marshal(reservation(testSeed, i, testItems))
		if err != nil {
			t.Fatal(err)
		}
		sent[i] = place{p, int64(log.Append(p, string(value)))}
	}
	return log, sent
}

func bounded(t *testing.T, log *memsource.Log) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return log.UntilApplied(ctx)
}

func checkExact(t *testing.T, b *show.Database, sent []place) {
	t.Helper()
	v, err := judge(t.Context(), sqlBooks{b}, testSeed, testItems, sent)
	if err != nil || !v.exact() {
		t.Errorf("%+v, %v", v, err)
	}
	if n, err := b.Count(t.Context(), `SELECT count(*) FROM ledger WHERE worker <> 'worker 7' OR epoch < 1`); n > 0 || err != nil {
		t.Errorf("%d lines do not say who, under which epoch; %v", n, err)
	}
}

func TestTheSQLiteHandlerTakesStockOnceForEachReservation(t *testing.T) {
	d := newTestDatabase(t, "")
	log, sent := testLog(t, 50)
	sink, err := sqlsink.Open(t.Context(), d.DB, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Run(bounded(t, log), log.Member("m"), sink, consumer.Each(reserve[*sqlsink.Tx]("worker 7")), consumer.Options{}); err != nil {
		t.Fatal(err)
	}
	checkExact(t, d, sent)
}

func TestThePostgresHandlerTakesStockOnceForEachReservation(t *testing.T) {
	db := pgtest.Start(t)
	d := newTestDatabase(t, db.URL)
	log, sent := testLog(t, 50)
	sink, err := pgsink.Open(t.Context(), d.Pool, pgsink.Options{Schema: d.Schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Run(bounded(t, log), log.Member("m"), sink, consumer.Batches(reserveAll("worker 7")), consumer.Options{}); err != nil {
		t.Fatal(err)
	}
	checkExact(t, d, sent)
}

var badMessages = []string{"", "{", `{"id":"x"}`, `{"id":1,"item":"no such item","quantity":1}`}

func TestTheHandlersRefuseBadMessagesAndWriteNothing(t *testing.T) {
	handlers := map[string]func(*testing.T) (*show.Database, func(consumer.Message) error){
		"SQLite": func(t *testing.T) (*show.Database, func(consumer.Message) error) {
			d := newTestDatabase(t, "")
			return d, func(m consumer.Message) error {
				tx, err := d.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Commit() }() // as if nobody had looked at the error
				return reserve[*sql.Tx]("worker 7")(t.Context(), tx, m, 1)
			}
		},
		"PostgreSQL": func(t *testing.T) (*show.Database, func(consumer.Message) error) {
			db := pgtest.Start(t)
			d := newTestDatabase(t, db.URL)
			return d, func(m consumer.Message) error {
				return pgx.BeginFunc(t.Context(), d.Pool, func(tx pgx.Tx) error {
					return reserveAll("worker 7")(t.Context(), tx, []consumer.Message{m}, 1)
				})
			}
		},
	}
	for name, open := range handlers {
		t.Run(name, func(t *testing.T) {
			d, handle := open(t)
			for _, value := range badMessages {
				err := handle(consumer.Message{Value: []byte(value)})
				if err == nil {
					t.Errorf("%q: no error", value)
				}
			}
			if n, err := d.Count(t.Context(), `SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM stock WHERE present <> $1)`, initial); n > 0 || err != nil {
				t.Errorf("%d lines are written or items taken, %v", n, err)
			}
		})
	}
}
