package pgoutbox_test

import (
	"strings"
	"sync"
	"testing"

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
