package docs

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// take is the handler that is tested.
func take(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	taken, err := tx.ExecContext(ctx, `UPDATE stock SET present = present - 1 WHERE item = ? AND present > 0`, string(m.Value))
	if err != nil {
		return err
	}
	if n, err := taken.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return consumer.Permanent(errors.New("out of stock"))
}

func TestTheEffectsOfTakeAreExactlyOnce(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "app.db")+"?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Exec(`CREATE TABLE stock (item TEXT PRIMARY KEY, present INTEGER); INSERT INTO stock VALUES ('chair', 2)`); err != nil {
		t.Fatal(err)
	}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	consumertest.Check(t, sink, consumer.Each(take).OnFailure(sink.DeadLetter),
		consumertest.Values("chair", "chair", "chair"), consumertest.SQLite(db), consumertest.Options{})
}

func TestAnEmptyStockHaltsWithoutOnFailure(t *testing.T) {
	pool := database(t, "stock.sql") // a connection to a PostgreSQL with the application's tables and pgsink's
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	log.Append(0, "chair", "chair", "chair")
	err = memsource.Apply(t.Context(), log, sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		taken, err := tx.Exec(ctx, `update stock set present = present - 1 where item = $1 and present > 0`, string(m.Value))
		if err == nil && taken.RowsAffected() == 0 {
			err = consumer.Permanent(errOutOfStock)
		}
		return err
	}))
	if !errors.Is(err, errOutOfStock) {
		t.Errorf("Apply = %v, want the third order's error", err)
	}
}

func TestAHandlerOnPostgreSQLIsJudged(t *testing.T) {
	pool := database(t, "stock.sql")
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	consumertest.Check(t, sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Exec(ctx, `update stock set present = present - 1 where item = $1`, string(m.Value))
		return err
	}), consumertest.Values("chair", "chair"), pgtables.Of(pool), consumertest.Options{})
}

var errOutOfStock = errors.New("out of stock")
