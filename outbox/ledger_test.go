package outbox_test

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/outbox/outboxtest"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// ledger is the sender's database: a table of payments, one of answers, the
// fences and the outbox. db is for looking at it, if it is an SQL database.
type ledger[TX any] struct {
	outboxtest.Rig[TX]
	db        *sql.DB
	items     cas.Store             // if it is no SQL database
	process   func() epoch.Sink[TX] // the sink of another process; nil: sink will do
	insert    func(ctx context.Context, tx TX, m epoch.Message, table, payment string) error
	table     func(t testing.TB, name string) (payments []string)
	left      func(t testing.TB) int // entries of the outbox
	guarantee epoch.Guarantee
}

// options are those of a consumer of the ledger.
func (l *ledger[TX]) options() consumer.Options {
	return consumer.Options{Guarantee: l.guarantee, RetryMin: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
}

// storeLedger keeps everything in a store of items.
func storeLedger(t testing.TB) *ledger[*cassink.Tx] {
	t.Helper()
	store := memstore.New()
	open := func() *cassink.Sink {
		s, err := cassink.Open(t.Context(), store, cassink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	sink := open()
	op := sink.Operator()
	return &ledger[*cassink.Tx]{
		Rig:   outboxtest.Rig[*cassink.Tx]{Sink: sink, Store: casoutbox.Store{}, Operator: op},
		items: store, process: func() epoch.Sink[*cassink.Tx] { return open() }, guarantee: epoch.PerItem,
		insert: func(ctx context.Context, tx *cassink.Tx, m epoch.Message, table, payment string) error {
			_, err := tx.Update(ctx, m, table, func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(string(old.Value) + payment + "\n"), nil, nil
			})
			return err
		},
		table: func(t testing.TB, name string) []string {
			state, err := guard.Read(t.Context(), store, name)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Fields(string(state.Value))
		},
		left: func(t testing.TB) int {
			es, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return len(es)
		},
	}
}

func sqliteLedger(t testing.TB) *ledger[*sqlsink.Tx] {
	t.Helper()
	db := sqliteFile(t, "ledger.db")
	must(t, func() error { return sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}) })
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	op, err := sqlsink.OpenOperator(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return (&ledger[*sqlsink.Tx]{
		Rig: outboxtest.Rig[*sqlsink.Tx]{Sink: sink, Store: store, Operator: op}, db: db,
		insert: func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Message, table, payment string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO `+table+` (payment) VALUES (?)`, payment)
			return err
		},
		left: func(t testing.TB) int { return count(t, db, `SELECT count(*) FROM epochfence_outbox_entry`) },
	}).tables(t)
}

func postgresLedger(t testing.TB) *ledger[pgsink.Tx] {
	t.Helper()
	d := pgtest.Start(t)
	admin := d.Superuser(t)
	role, url := d.Role(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", d.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	must(t, func() error { return pgsink.Migrate(t.Context(), admin, pgsink.Options{}) })
	must(t, func() error { return pgsink.Grant(t.Context(), admin, role, pgsink.Options{}) })
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	human, humanURL := d.Role(t)
	grant, err := pgsink.GrantOperatorSQL(human, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	must(t, func() error { _, err := admin.Exec(t.Context(), grant); return err })
	humans, err := pgxpool.New(t.Context(), humanURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(humans.Close)
	op, err := pgsink.OpenOperator(t.Context(), humans, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := (&ledger[pgsink.Tx]{
		Rig: outboxtest.Rig[pgsink.Tx]{Sink: sink, Store: store, Operator: op}, db: db,
		insert: func(ctx context.Context, tx pgsink.Tx, _ epoch.Message, table, payment string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+table+` (payment) VALUES ($1)`, payment)
			return err
		},
		left: func(t testing.TB) int { return count(t, db, `SELECT count(*) FROM epochfence.outbox_entry`) },
	}).tables(t)
	must(t, func() error {
		_, err := admin.Exec(t.Context(), `GRANT INSERT ON payments, answers TO `+role)
		return err
	})
	return l
}

func (l *ledger[TX]) tables(t testing.TB) *ledger[TX] {
	t.Helper()
	for _, name := range []string{"payments", "answers"} {
		must(t, func() error {
			_, err := l.db.ExecContext(t.Context(), `CREATE TABLE `+name+` (payment text)`)
			return err
		})
	}
	l.table = func(t testing.TB, name string) (payments []string) {
		t.Helper()
		rows, err := l.db.QueryContext(t.Context(), `SELECT payment FROM `+name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var payment string
			must(t, func() error { return rows.Scan(&payment) })
			payments = append(payments, payment)
		}
		must(t, rows.Err)
		return payments
	}
	return l
}

func sqliteFile(t testing.TB, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), name)+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func must(t testing.TB, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	must(t, func() error { return db.QueryRowContext(t.Context(), query).Scan(&n) })
	return n
}
