package pgoutbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

var ours = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

// TestAnEntryOvertakesNoneThatIsThere though the table's identity is behind its rows, as it is
// after logical replication, which copies rows and no sequences; and the statement in the error fixes it.
func TestAnEntryOvertakesNoneThatIsThere(t *testing.T) {
	for _, schema := range []string{"", `it's "Größe"`} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Start(t)
			admin := d.Superuser(t)
			role, url := d.Role(t)
			o, of := pgoutbox.Options{Schema: schema}, pgsink.Options{Schema: schema}
			for _, err := range []error{pgsink.Migrate(t.Context(), admin, of), pgsink.Grant(t.Context(), admin, role, of)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			app, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = app.Close(context.WithoutCancel(t.Context())) }()
			store, err := pgoutbox.Open[pgx.Tx](t.Context(), app, o)
			if err != nil {
				t.Fatal(err)
			}
			add := func(n int) error {
				return pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
					return store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: "k", IdempotencyKey: fmt.Sprint(n)})
				})
			}
			for n := range 9 {
				if err := add(n); err != nil {
					t.Fatal(err)
				}
			}
			table := "epochfence.outbox_entry"
			if schema != "" {
				table = pgx.Identifier{schema, "outbox_entry"}.Sanitize()
			}
			if _, err := admin.Exec(t.Context(), "alter table "+table+" alter id restart"); err != nil {
				t.Fatal(err)
			}
			observed := func(err error) string {
				t.Helper()
				wantError(t, err, "run as the owner: ")
				_, sql, _ := strings.Cut(fmt.Sprint(err), "run as the owner: ")
				sql, _, _ = strings.Cut(sql, " (SQLSTATE")
				return sql
			}
			_, err = pgoutbox.Open[pgx.Tx](t.Context(), app, o)
			sql := observed(err)
			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if _, err := pgsink.Open(t.Context(), pool, of); !strings.Contains(fmt.Sprint(err), sql) {
				t.Errorf("pgsink.Open: err = %v; want %q in it", err, sql)
			}
			for n := range 3 { // each uses a number up
				if err := add(9 + n); observed(err) != sql {
					t.Errorf("entry %d: err = %v; want %q in it", n, err, sql)
				}
			}
			for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
				other := d.Superuser(t)
				for range 2 { // not remembered by one that was refused
					observed(pgx.BeginTxFunc(t.Context(), other, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
						return store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: "k", IdempotencyKey: "k"})
					}))
				}
			}
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			if _, err := pgoutbox.Open[pgx.Tx](t.Context(), app, o); err != nil {
				t.Error(err)
			}
			if err := add(12); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEntriesThatAreAddedAtATimeDoNotRefuseEachOther: one that commits late, under a lower
// number, is in order, under each isolation.
func TestEntriesThatAreAddedAtATimeDoNotRefuseEachOther(t *testing.T) {
	d := pgtest.Start(t)
	first, second := d.Superuser(t), d.Superuser(t)
	if err := pgsink.Migrate(t.Context(), first, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgx.Tx](t.Context(), first, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(tx pgx.Tx) error {
		return store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: "k", IdempotencyKey: "k"})
	}
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			o := pgx.TxOptions{IsoLevel: level}
			for _, conn := range []*pgx.Conn{first, second} {
				if err := pgx.BeginTxFunc(t.Context(), conn, o, add); err != nil {
					t.Fatal(err)
				}
			}
			err := pgx.BeginTxFunc(t.Context(), first, o, func(tx pgx.Tx) error {
				for range 20 {
					if err := add(tx); err != nil {
						return err
					}
					if err := pgx.BeginTxFunc(t.Context(), second, o, add); err != nil {
						return fmt.Errorf("beside it: %w", err)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnEntryThatIsCommittedWhileAnotherIsAddedDoesNotRefuseIt: the other has taken its number
// before, and is about to look.
func TestAnEntryThatIsCommittedWhileAnotherIsAddedDoesNotRefuseIt(t *testing.T) {
	d := pgtest.Start(t)
	first, second, admin := d.Superuser(t), d.Superuser(t), d.Superuser(t)
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgx.Tx](t.Context(), admin, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create function wait() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
		create trigger a_wait before insert on epochfence.outbox_entry for each row when (new.order_key = 'slow') execute function wait();
		select pg_advisory_lock(1)`)
	add := func(conn *pgx.Conn, key string) error {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			return store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: key, IdempotencyKey: key})
		})
	}
	slow := make(chan error, 1)
	go func() { slow <- add(first, "slow") }()
	awaitsLock(t, admin)
	if err := add(second, "fast"); err != nil {
		t.Error(err)
	}
	exec(`select pg_advisory_unlock(1)`)
	if err := <-slow; err != nil {
		t.Error(err)
	}
}
