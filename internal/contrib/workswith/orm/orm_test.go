package orm

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	_ "github.com/glebarez/go-sqlite" // the driver sqlite; glebarez/sqlite and modernc.org/sqlite register the same name
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// There are 10 chairs, and each order wants 4: two get theirs, and the savepoints of
// the others are gone back from.
const present, wanted, orders = 10, 4, 5

func TestLibrariesWriteExactlyOnceThroughPgsink(t *testing.T) {
	for name, use := range Libraries {
		t.Run(name, func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
				t.Fatal(err)
			}
			sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
			if err != nil {
				t.Fatal(err)
			}
			db := stdlib.OpenDBFromPool(pool)
			defer func() { _ = db.Close() }()
			exec(t, db, `CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item TEXT NOT NULL, quantity BIGINT NOT NULL)`)
			play(t, sink, pgsink.OpenDB, db, func(ctx context.Context, db *sql.DB, o Order) error { return use(ctx, db, true, o) })
		})
	}
}

func TestLibrariesWriteExactlyOnceThroughSqlsink(t *testing.T) {
	for name, use := range Libraries {
		t.Run(name, func(t *testing.T) {
			db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "app.db")+"?_pragma=journal_mode(wal)")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
				t.Fatal(err)
			}
			sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
			if err != nil {
				t.Fatal(err)
			}
			exec(t, db, `CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL, quantity INTEGER NOT NULL)`)
			play(t, sink, sqlsink.OpenDB, db, func(ctx context.Context, db *sql.DB, o Order) error { return use(ctx, db, false, o) })
		})
	}
}

// play has each order handled by use, twice, as the first time fails after it has
// written, and looks at db.
func play[TX any](t *testing.T, sink epoch.Sink[TX], open func(TX) *sql.DB, db *sql.DB, use func(context.Context, *sql.DB, Order) error) {
	exec(t, db, `CREATE TABLE stock (item TEXT PRIMARY KEY, present BIGINT NOT NULL)`)
	exec(t, db, `INSERT INTO stock (item, present) VALUES ('chair', `+strconv.Itoa(present)+`)`)
	log := memsource.New("orders", 1)
	for range orders {
		log.Append(0, "chair")
	}
	failed := map[epoch.Offset]bool{}
	handle := func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		db := open(tx)
		err := use(ctx, db, Order{Item: string(m.Value), Quantity: wanted})
		if err = errors.Join(err, db.Close()); err != nil {
			return consumer.Permanent(err)
		}
		if !failed[m.Offset] {
			failed[m.Offset] = true
			return errors.New("fails once, after it has written")
		}
		return nil
	}
	err := consumer.Run(log.UntilApplied(t.Context()), log.Member("a"), sink,
		consumer.Each(handle).OnFailure(func(_ context.Context, _ TX, _ consumer.Message, _ epoch.Epoch, err error) error {
			t.Error(err)
			return nil
		}),
		consumer.Options{Logger: slog.New(slog.DiscardHandler), RetryMin: time.Millisecond, RetryMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var stored, left int64
	if err := db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM orders), (SELECT present FROM stock)`).Scan(&stored, &left); err != nil {
		t.Fatal(err)
	}
	if stored != orders || left != present%wanted {
		t.Errorf("%d orders and %d chairs, want %d and %d", stored, left, orders, present%wanted)
	}
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
