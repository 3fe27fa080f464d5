package pgoutbox_test

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func wantError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "pgoutbox: ") || !strings.Contains(err.Error(), says) {
		t.Errorf("err = %v, want one of pgoutbox that says %q", err, says)
	}
}

func TestOpenRefusesASchemaOfAnotherVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t).Superuser(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, schema := range []string{"", `odd "name`} {
		refused := func(want error, says string) {
			t.Helper()
			_, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{Schema: schema})
			wantError(t, err, says)
			if want != nil && !errors.Is(err, want) {
				t.Errorf("err = %v, want %v", err, want)
			}
		}
		of := pgsink.Options{Schema: schema}
		refused(migrations.ErrNotMigrated, "run pgsink.Migrate")
		ms, err := pgsink.Migrations(of)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms[:len(ms)-1] {
			exec(m.SQL)
			refused(migrations.ErrOlder, "run pgsink.Migrate")
		}
		in := pgx.Identifier{cmp.Or(schema, pgoutbox.DefaultSchema)}.Sanitize()
		exec(`insert into ` + in + `.outbox_entry (group_name, topic, partition, order_key, scope, idempotency_key, method, url, header, body)
			values ('g', 't', 0, 'k', 's', 'of an earlier version', 'POST', 'http://host/', '', '')`)
		if err := pgsink.Migrate(t.Context(), db, of); err != nil {
			t.Fatal(err)
		}
		var offset int64
		if err := db.QueryRow(t.Context(), `select message_offset from `+in+`.rows('outbox', null, null, null, null, null, null, null, null, null, null, false, null)`).Scan(&offset); err != nil || offset != -1 {
			t.Errorf("an entry of an earlier version has the offset %d, %v; want -1", offset, err)
		}
		if _, err := pgoutbox.Open[pgsink.Tx](t.Context(), db, pgoutbox.Options{Schema: schema}); err != nil {
			t.Error(err)
		}
		exec(`insert into ` + in + `.migration (version, name) values (1000, 'of another major number')`)
		refused(migrations.ErrNewer, "update the program")
	}
}

func TestOpenChecksItsOptions(t *testing.T) {
	t.Parallel()
	for says, o := range map[string]pgoutbox.Options{
		"keeps 63":             {Schema: strings.Repeat("x", 64)},
		"Options.StartTimeout": {StartTimeout: -1},
	} {
		_, err := pgoutbox.Open[pgsink.Tx](t.Context(), nil, o)
		wantError(t, err, says)
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
	wantError(t, err, "run pgsink.Migrate")
	ms, err := pgsink.Migrations(pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('epochfence migrate epochfence', 0))`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pgsink.Migrate(t.Context(), second, pgsink.Options{}) }()
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
