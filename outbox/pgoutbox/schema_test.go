package pgoutbox_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/pgtest"
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
		_, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, schema)
		wantError(t, err, "call pgoutbox.Migrate")
		if err := pgoutbox.Migrate(t.Context(), db, schema); err != nil {
			t.Fatal(err)
		}
		if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, schema); err != nil {
			t.Error(err)
		}
	}
	if _, err := db.Exec(t.Context(), `insert into epochfence_outbox.outbox_migration values (99)`); err != nil {
		t.Fatal(err)
	}
	_, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, "")
	wantError(t, err, "newer program")
	wantError(t, pgoutbox.Migrate(t.Context(), db, ""), "newer program")
	wantError(t, pgoutbox.Migrate(t.Context(), db, strings.Repeat("x", 64)), "63 bytes")
	wantError(t, pgoutbox.Grant(t.Context(), db, "", ""), "role name is empty")
}

func TestTheOutboxFindsRoomInTheSchemaOfTheSinkAndOfTheApplication(t *testing.T) {
	db := pgtest.Start(t).Superuser(t)
	const schema = "billing"
	for _, sql := range []string{`create schema billing`, `create table billing.entry (id int)`, `create table billing.migration (id int)`} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgoutbox.Migrate(t.Context(), db, schema); err != nil {
		t.Fatal(err)
	}
	if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, schema); err != nil {
		t.Error(err)
	}
	if err := pgsink.Migrate(t.Context(), db, "shared"); err != nil {
		t.Fatal(err)
	}
	if err := pgoutbox.Migrate(t.Context(), db, "shared"); err != nil {
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
	_, err := pgoutbox.Open[pgsink.Tx](t.Context(), second, "") // remembers that there is no table
	wantError(t, err, "call pgoutbox.Migrate")
	ms, err := pgoutbox.Migrations("")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('epochfence outbox migrate epochfence_outbox', 0))`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pgoutbox.Migrate(t.Context(), second, "") }()
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
			if err := pgoutbox.Migrate(t.Context(), conn, ""); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), d.Superuser(t), ""); err != nil {
		t.Error(err)
	}
}
