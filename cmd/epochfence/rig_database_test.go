package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// place is a sink's database or store, and what consumers do with it.
type place struct {
	url     string
	stored  bool // a store has the sink, and no database
	op      operate.Operator
	alive   func(ctx context.Context, p operate.Process) error // a sign of life
	consume func(ctx context.Context, s consumer.Source, o consumer.Options) error
	applied func() []effect
	halts   bool                     // what fails halts its partition, and is no dead letter
	during  func(m consumer.Message) // called by the handler
	timeout time.Duration            // of a transaction
	observe func(consumer.Event)
	posts   func(m consumer.Message) string // where the outbox sends a message to; empty: nowhere
}

// halting is p with a handler that has no place for dead letters.
func (p *place) halting() *place {
	p.halts = true
	return p
}

func (p *place) handles(m consumer.Message, fails broken) error {
	if p.during != nil {
		p.during(m)
	}
	if fails(m) {
		return consumer.Permanent(fmt.Errorf("%q is no order", m.Value))
	}
	return nil
}

// effect is a row of what a handler has written.
type effect struct {
	number int32
	offset epoch.Offset
	epoch  epoch.Epoch
}

// broken says of a message that its handler fails.
type broken func(m consumer.Message) bool

// variables are where the program finds the place, with other variables.
func (p *place) variables(others ...string) map[string]string {
	env := map[string]string{"EPOCHFENCE_DATABASE": p.url}
	if p.stored {
		env = map[string]string{"EPOCHFENCE_STORE": p.url}
	}
	for i := 0; i < len(others); i += 2 {
		env[others[i]] = others[i+1]
	}
	return env
}

// everywhere runs a test on SQLite, on PostgreSQL, and on a store.
func everywhere(t *testing.T, test func(t *testing.T, open func(broken) *place)) {
	onBoth(t, test)
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		test(t, func(b broken) *place { return inStore(t, b) })
	})
}

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, open func(broken) *place)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, func(b broken) *place { return inSQLite(t, b) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, func(b broken) *place { return inPostgres(t, b) })
	})
}

func inSQLite(t *testing.T, fails broken) *place {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sink.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return inSQL(t, "file:"+path, db, sqlsink.SQLite, sqloutbox.SQLite, "INTEGER PRIMARY KEY AUTOINCREMENT", fails)
}

func inSQL(t *testing.T, url string, db *sql.DB, d sqlsink.Dialect, o sqloutbox.Dialect, key string, fails broken) *place {
	t.Helper()
	p := &place{}
	must(t, sqlsink.Migrate(t.Context(), db, d, sqlsink.Options{}))
	_, err := db.ExecContext(t.Context(), "CREATE TABLE applied (seq "+key+", number INTEGER, message_offset INTEGER, epoch INTEGER)")
	must(t, err)
	sink, err := sqlsink.Open(t.Context(), db, d, sqlsink.Options{})
	must(t, err)
	op, err := sqlsink.OpenOperator(t.Context(), db, d, sqlsink.Options{})
	must(t, err)
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, o, sqloutbox.Options{})
	must(t, err)
	box, err := outbox.New(store, slowly[*sqlsink.Tx]())
	must(t, err)
	handler := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if err := p.handles(m, fails); err != nil {
			return err
		}
		if err := post(ctx, p, box, tx, m); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO applied (number, message_offset, epoch) VALUES (?, ?, ?)", m.Partition.Number, m.Offset, e)
		return err
	}
	*p = place{
		url: url, op: op, alive: operate.RecordsIn[*sqlsink.Tx](sink).Alive,
		consume: func(ctx context.Context, s consumer.Source, o consumer.Options) error {
			return consume(ctx, p, s, sink, consumer.Each(handler), sink.DeadLetter, box, o)
		},
		applied: func() (as []effect) {
			rows, err := db.Query("SELECT number, message_offset, epoch FROM applied ORDER BY seq")
			must(t, err)
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var a effect
				must(t, rows.Scan(&a.number, &a.offset, &a.epoch))
				as = append(as, a)
			}
			must(t, rows.Err())
			return as
		},
	}
	return p
}

func inPostgres(t *testing.T, fails broken) *place {
	t.Helper()
	p := &place{}
	url := pgtest.Start(t).URL
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, pgsink.Migrate(t.Context(), pool, pgsink.Options{}))
	_, err = pool.Exec(t.Context(), "create table applied (seq bigint generated always as identity, number int, message_offset bigint, epoch bigint)")
	must(t, err)
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	must(t, err)
	op, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
	must(t, err)
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	must(t, err)
	box, err := outbox.New(store, slowly[pgsink.Tx]())
	must(t, err)
	handler := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if err := p.handles(m, fails); err != nil {
			return err
		}
		if err := post(ctx, p, box, tx, m); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into applied (number, message_offset, epoch) values ($1, $2, $3)", m.Partition.Number, int64(m.Offset), int64(e))
		return err
	}
	*p = place{
		url: url, op: op, alive: operate.RecordsIn[pgsink.Tx](sink).Alive,
		consume: func(ctx context.Context, s consumer.Source, o consumer.Options) error {
			return consume(ctx, p, s, sink, consumer.Each(handler), sink.DeadLetter, box, o)
		},
		applied: func() (as []effect) {
			rows, err := pool.Query(context.Background(), "select number, message_offset, epoch from applied order by seq")
			must(t, err)
			defer rows.Close()
			for rows.Next() {
				var a effect
				must(t, rows.Scan(&a.number, &a.offset, &a.epoch))
				as = append(as, a)
			}
			must(t, rows.Err())
			return as
		},
	}
	return p
}

// consume is consumer.Run with what p has of handlers.
func consume[TX any](ctx context.Context, p *place, s consumer.Source, sink epoch.Sink[TX], h consumer.Handlers[TX],
	deadLetter func(context.Context, TX, epoch.Message, epoch.Epoch, error) error, box *outbox.Box[TX], o consumer.Options,
) error {
	if !p.halts {
		h = h.OnFailure(deadLetter)
	}
	if p.posts != nil {
		h = h.Background(box.Relay)
	}
	return consumer.Run(ctx, s, sink, h, o)
}

// slowly is an outbox that tries again what failed when the test is long over.
func slowly[TX any]() outbox.Options[TX] {
	return outbox.Options[TX]{RetryMin: 10 * time.Minute, RetryMax: 10 * time.Minute}
}

func post[TX any](ctx context.Context, p *place, box *outbox.Box[TX], tx TX, m consumer.Message) error {
	if p.posts == nil || p.posts(m) == "" {
		return nil
	}
	at := fmt.Sprintf("order/%d/%d", m.Partition.Number, m.Offset)
	return box.Add(ctx, tx, m, outbox.Entry{Key: at, Scope: at, IdempotencyKey: at, URL: p.posts(m), Header: http.Header{"Authorization": {"s3cret"}}, Body: m.Value})
}

// none fails nothing.
func none(consumer.Message) bool { return false }
