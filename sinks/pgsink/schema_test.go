package pgsink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestConcurrentMigrationsAreSafe(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	pool := newPool(t, db.URL)
	errs := make(chan error)
	for range 6 {
		go func() { errs <- pgsink.Migrate(t.Context(), pool, pgsink.Options{}) }()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, err := pgsink.Open(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
}

func TestMigratingAgainChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Fatalf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

func TestAMigratorNeedsNoRightToCreateASchemaThatExists(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	owner, url := db.Role(t)
	if _, err := db.Superuser(t).Exec(t.Context(), "create schema fences authorization "+owner); err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, url)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{Schema: "fences"}); err != nil {
		t.Fatal(err)
	}
	if _, err := pgsink.Open(t.Context(), pool, pgsink.Options{Schema: "fences"}); err != nil {
		t.Fatal(err)
	}
	err := pgsink.Migrate(t.Context(), pool, pgsink.Options{Schema: "another"})
	if err == nil || !strings.Contains(err.Error(), "permission denied for database") {
		t.Fatalf("err = %v; want that the schema may not be created", err)
	}
}

func TestOpenSaysWhatIsWrongWithTheSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stranger, strangerURL := r.db.Role(t)
	open := func(url, schema string) error {
		_, err := pgsink.Open(t.Context(), newPool(t, url), pgsink.Options{Schema: schema})
		return err
	}
	check := func(what string, err, target error, mentions string) {
		t.Helper()
		if !errors.Is(err, target) || !strings.Contains(fmt.Sprint(err), mentions) {
			t.Errorf("%s: err = %v; want %v, and %q in it", what, err, target, mentions)
		}
	}
	check("no such schema", open(r.appURL, "nowhere"), migrations.ErrNotMigrated, "nowhere")
	r.sql("create schema bare; grant usage on schema bare to public")
	check("an empty schema", open(r.appURL, "bare"), migrations.ErrNotMigrated, "bare")
	check("no right to the schema", open(strangerURL, ""), pgsink.ErrPermission, stranger)
	r.sql("grant usage on schema epochfence to " + stranger)
	check("no right to the functions", open(strangerURL, ""), pgsink.ErrPermission, "schema_version")
	r.sql("grant execute on all functions in schema epochfence to " + stranger + "; revoke execute on function epochfence.claim from " + stranger)
	check("no right to one function", open(strangerURL, ""), pgsink.ErrPermission, "claim")

	steps, err := pgsink.Migrations(pgsink.Options{Schema: "old"})
	if err != nil {
		t.Fatal(err)
	}
	r.sql(steps[0].SQL + "grant usage on schema old to public; grant execute on all functions in schema old to public")
	check("a schema of an older version", open(r.appURL, "old"), migrations.ErrOlder, "version 1")
	if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{Schema: "old"}); err != nil {
		t.Fatal(err)
	}
	if err := open(r.db.URL, "old"); err != nil {
		t.Errorf("after Migrate brought it up to date: %v", err)
	}

	r.sql("insert into epochfence.migration (version, name) values (1000, 'of another major number')")
	check("a schema of another major number", open(r.appURL, ""), migrations.ErrNewer, "1000")
	check("a schema of another major number", pgsink.Migrate(t.Context(), r.admin, pgsink.Options{}), migrations.ErrNewer, "1000")
}

func TestAMigrationLocksWhatItSays(t *testing.T) {
	steps, err := pgsink.Migrations(pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	later := map[int][]string{7: {`"epochfence".outbox_entry`}} // the others lock only what they make
	for _, m := range steps {
		if got := m.Locks(); !slices.Equal(got, later[m.Version]) {
			t.Errorf("version %d locks %q, want %q", m.Version, got, later[m.Version])
		}
	}
}

func TestAProgramWorksOnANewerSchemaAndSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("insert into epochfence.migration (version, name) values (99, 'of tomorrow')")
	if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := r.open(func(o *pgsink.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("a", "1")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "newer than this program") || !strings.Contains(log.String(), "version=99") {
		t.Errorf("Open says %q", log.String())
	}
}

// TestAMigrationNeitherRewritesNorReadsATable: so its locks are short, however long the tables are.
func TestAMigrationNeitherRewritesNorReadsATable(t *testing.T) {
	t.Parallel()
	conn := pgtest.Start(t).Superuser(t)
	scripts, err := pgsink.Migrations(pgsink.Options{})
	must(t, err)
	type table struct{ Name, File string }
	scans := func(tx pgx.Tx) map[table]int { // of each table; within a transaction they only rise
		rows, err := tx.Query(t.Context(), `select relname::text, pg_relation_filenode(relid)::text, coalesce(seq_scan, 0) + coalesce(idx_scan, 0)
			from pg_stat_xact_user_tables where schemaname = 'epochfence'`)
		must(t, err)
		all := map[table]int{}
		var one table
		var n int
		_, err = pgx.ForEachRow(rows, []any{&one.Name, &one.File, &n}, func() error { all[one] = n; return nil })
		must(t, err)
		return all
	}
	for _, script := range scripts {
		must(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			before := scans(tx)
			_, err := tx.Exec(t.Context(), script.SQL)
			must(t, err)
			after := scans(tx)
			for one, n := range before {
				if now, there := after[one]; !there || now != n {
					t.Errorf("migration %d: %v has another file, or was read %d times", script.Version, one, now-n)
				}
			}
			return nil
		}))
	}
}

func TestAMigrationLetsOthersGoFirstAndTriesAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	pool := newPool(t, db.URL)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "lock table epochfence.migration"); err != nil {
		t.Fatal(err)
	}
	waits := make(chan string, 100)
	migrated := make(chan error)
	go func() {
		migrated <- pgsink.Migrate(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.NewTextHandler(lines(waits), nil))})
	}()
	if line := <-waits; !strings.Contains(line, "tries again") {
		t.Errorf("it says %q", line)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

// TestTheApplicationCannotTouchTheTables is why the functions are SECURITY
// DEFINER: a bug or an injection in the application cannot move a fence.
func TestTheApplicationCannotTouchTheTables(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open() // and yet it can do all a sink does, as the suite shows
	seed(t, s, orders)
	claim(t, s, orders, 5)
	app, err := pgx.Connect(t.Context(), r.appURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close(context.Background()) }()
	for _, sql := range []string{
		"select from epochfence.fence",
		"update epochfence.fence set next_offset = 0",
		"delete from epochfence.fence",
		"insert into epochfence.fence (group_name, topic, partition, log_id, lease_source, next_offset) values ('', '', 0, '', '', 0)",
		"truncate epochfence.fence",
		"select from epochfence.migration",
		"delete from epochfence.fence_ledger",
		"select from epochfence.fence_ledger",
		"create table epochfence.mine ()",
		"drop function epochfence.claim",
		"select epochfence.refuse('', '', 0, '00000000-0000-0000-0000-000000000000', 0, '')",
		"select epochfence.entered(0, 0)",
		"alter table epochfence.fence disable trigger all",
		"begin; lock table epochfence.fence",
		"rollback; select nextval('epochfence.fence_ledger_id_seq')",
	} {
		_, err := app.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: err = %v; want that permission is denied", sql, err)
		}
	}
}

func TestFunctionsIgnoreTheCallersSearchPath(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.openOn(newPool(t, r.appURL, runtimeParam("search_path", "decoy, pg_catalog")))
	r.sql(`create schema decoy authorization ` + r.role + `;
		create table decoy.fence (like epochfence.fence); grant all on decoy.fence to ` + r.role)
	seed(t, s, orders)
	claim(t, s, orders, 5)
	var n int
	if err := r.admin.QueryRow(t.Context(), "select count(*) from decoy.fence").Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d fences went to the caller's schema, %v", n, err)
	}
}

func TestASchemaMayHaveAnyName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{
		"Upper", `quo"ted`, "it's", "größe 数量", "semi;colon -- comment", "$$", "select", strings.Repeat("x", 63),
	} {
		if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{Schema: name}); err != nil {
			t.Fatal(err)
		}
		if err := pgsink.Grant(t.Context(), r.admin, r.role, pgsink.Options{Schema: name}); err != nil {
			t.Fatal(err)
		}
		s := r.open(func(o *pgsink.Options) { o.Schema = name })
		seed(t, s, orders)
		f := claim(t, s, orders, 5)
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting(name, "1")); err != nil {
			t.Fatal(err)
		}
		r.wantList(name, "1")
	}
	for _, name := range []string{strings.Repeat("x", 64), "nul\x00", "not utf-8 \xff"} {
		if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{Schema: name}); err == nil {
			t.Errorf("a schema named %q was made", name)
		}
		if _, err := pgsink.Open(t.Context(), newPool(t, r.appURL), pgsink.Options{Schema: name}); err == nil {
			t.Errorf("a schema named %q was opened", name)
		}
	}
}

// What users' migration tools apply.
func TestTheExportedSQLIsWhatMigrateAppliesAndGrants(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"exported", `Fences of "Größe"`} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Start(t)
			conn := db.Superuser(t)
			o := pgsink.Options{Schema: schema}
			steps, err := pgsink.Migrations(o)
			if err != nil {
				t.Fatal(err)
			}
			app, appURL := db.Role(t)
			grant, err := pgsink.GrantSQL(app, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range steps {
				if _, err := conn.Exec(t.Context(), m.SQL); err != nil {
					t.Fatal(err)
				}
			}
			// Migrate finds nothing left to do, and the application can work.
			if err := pgsink.Migrate(t.Context(), conn, o); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), grant); err != nil {
				t.Fatal(err)
			}
			s, err := pgsink.Open(t.Context(), newPool(t, appURL), o)
			if err != nil {
				t.Fatal(err)
			}
			seed(t, s, orders)
			claim(t, s, orders, 5)
		})
	}
}

func TestTwoGroupsOnOneTableAreIndependent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	shipping := orders
	shipping.Group = "shipping"
	seed(t, s, orders, shipping)
	a, b := claim(t, s, orders, 5), claim(t, s, shipping, 9)
	if a.Epoch != 5 || b.Epoch != 9 {
		t.Fatalf("epochs %d and %d", a.Epoch, b.Epoch)
	}
	if err := s.Commit(t.Context(), advance(a, 3), epoch.TxOptions{}, putting("a", "1")); err != nil {
		t.Fatal(err)
	}
	if f, err := epoch.FenceOf(t.Context(), s, shipping); err != nil || f != b {
		t.Fatalf("the other group's fence is %+v, %v; want %+v", f, err, b)
	}
	claim(t, s, shipping, 10)
	a.Next = 3
	if err := s.Commit(t.Context(), advance(a, 1), epoch.TxOptions{}, putting("a", "2")); err != nil {
		t.Fatalf("after the other group's takeover: %v", err)
	}
	// In a transaction of both, a message belongs to the group that it names.
	b = claim(t, s, shipping, 11)
	a.Next = 4
	err := s.Commit(t.Context(), append(advance(a, 1), advance(b, 1)...), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: shipping, Offset: 4}, b.Epoch, errors.New("bad"))
	})
	if err != nil {
		t.Fatal(err)
	}
	var group string
	if err := r.admin.QueryRow(t.Context(), "select group_name from epochfence.fence_ledger where kind = 'dead-letter'").Scan(&group); err != nil || group != "shipping" {
		t.Fatalf("the dead letter is of group %q, %v", group, err)
	}
}
