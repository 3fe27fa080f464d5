package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func wantError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "pgoutbox: ") || !strings.Contains(err.Error(), says) {
		t.Errorf("err = %v, want one of pgoutbox that says %q", err, says)
	}
}

func TestOpenWantsTheSchemaOfThisVersion(t *testing.T) {
	db := pgtest.Start(t).Superuser(t)
	for _, schema := range []string{"", `odd "name`} {
		_, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{Schema: schema})
		wantError(t, err, "run pgoutbox.Migrate")
		if err := pgoutbox.Migrate(t.Context(), db, pgoutbox.Options{Schema: schema}); err != nil {
			t.Fatal(err)
		}
		if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{Schema: schema}); err != nil {
			t.Error(err)
		}
	}
	if _, err := db.Exec(t.Context(), `insert into epochfence_outbox.outbox_migration values (99, 'of tomorrow')`); err != nil {
		t.Fatal(err)
	}
	_, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{})
	wantError(t, err, "update the program")
	wantError(t, pgoutbox.Migrate(t.Context(), db, pgoutbox.Options{}), "update the program")
	wantError(t, pgoutbox.Migrate(t.Context(), db, pgoutbox.Options{Schema: strings.Repeat("x", 64)}), "keeps 63")
	wantError(t, pgoutbox.Grant(t.Context(), db, "", pgoutbox.Options{}), "role is empty")
}

func TestTheOutboxFitsIntoTheSchemaOfTheSinkAndOfTheApplication(t *testing.T) {
	db := pgtest.Start(t).Superuser(t)
	const schema = "billing"
	for _, sql := range []string{`create schema billing`, `create table billing.entry (id int)`, `create table billing.migration (id int)`} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgoutbox.Migrate(t.Context(), db, pgoutbox.Options{Schema: schema}); err != nil {
		t.Fatal(err)
	}
	if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{Schema: schema}); err != nil {
		t.Error(err)
	}
	if err := pgsink.Migrate(t.Context(), db, pgsink.Options{Schema: "shared"}); err != nil {
		t.Fatal(err)
	}
	if err := pgoutbox.Migrate(t.Context(), db, pgoutbox.Options{Schema: "shared"}); err != nil {
		t.Error(err)
	}
}

// awaitsLock waits until somebody waits for an advisory lock.
func awaitsLock(t *testing.T, db *pgx.Conn) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waits := false; !waits; <-tick.C {
		err := db.QueryRow(t.Context(), `select exists (select from pg_locks where locktype = 'advisory' and not granted)`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMigrationThatWaitedForAnotherSeesItThoughItHadLookedBefore(t *testing.T) {
	d := pgtest.Start(t)
	first, second := d.Superuser(t), d.Superuser(t)
	_, err := pgoutbox.Open[pgsink.Tx](t.Context(), second, pgoutbox.Options{}) // remembers that there is no table
	wantError(t, err, "run pgoutbox.Migrate")
	ms, err := pgoutbox.Migrations(pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('epochfence migrate epochfence_outbox', 0))`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pgoutbox.Migrate(t.Context(), second, pgoutbox.Options{}) }()
	awaitsLock(t, d.Superuser(t))
	for _, m := range ms {
		if _, err := tx.Exec(t.Context(), m.SQL); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConcurrentMigrationsDoTheWorkOnce(t *testing.T) {
	d := pgtest.Start(t)
	var all sync.WaitGroup
	for range 4 {
		conn := d.Superuser(t)
		all.Go(func() {
			if err := pgoutbox.Migrate(t.Context(), conn, pgoutbox.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), d.Superuser(t), pgoutbox.Options{}); err != nil {
		t.Error(err)
	}
}

func TestAnApplicationsRoleCanAddAndDeleteEntriesAndNothingElse(t *testing.T) {
	d := pgtest.Start(t)
	admin := d.Superuser(t)
	role, url := d.Role(t)
	o := pgoutbox.Options{Schema: `odd "name"`}
	ms, err := pgoutbox.Migrations(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms { // as a migration tool does
		if _, err := admin.Exec(t.Context(), m.SQL); err != nil {
			t.Fatal(err)
		}
	}
	grant, err := pgoutbox.GrantSQL(role, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), grant); err != nil {
		t.Fatal(err)
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
	p := epoch.Partition{Group: "billing", Topic: "orders"}
	err = pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
		if err := store.Add(t.Context(), tx, p, outbox.Entry{URL: "http://host/"}); err != nil {
			return err
		}
		rows, _, err := store.Scan(t.Context(), tx, p, outbox.Cursor{}, 10)
		if err != nil || len(rows) != 1 {
			return fmt.Errorf("%d rows: %w", len(rows), err)
		}
		_, err = store.Delete(t.Context(), tx, p, []int64{rows[0].ID})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, sql := range []string{`update "odd ""name""".outbox_entry set url = ''`, `delete from "odd ""name""".outbox_migration`} {
		var pg *pgconn.PgError
		if _, err := app.Exec(t.Context(), sql); !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: err = %v; want that permission is denied", sql, err)
		}
	}
}
