package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Tests wait for leases to end and for servers to start. The command line goes before this.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// rig is a database.
func rig(t testing.TB) castest.Rig {
	db := pgtest.Start(t)
	admin := db.Superuser(t)
	exec := func(t testing.TB, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	migrate := func(t testing.TB) {
		if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	migrate(t)
	return castest.Rig{
		Served: true,
		Open: func(t testing.TB, via func(string) string) cas.Store {
			return open(t, pool(t, db.URL, via))
		},
		Backup: func(t testing.TB) func() {
			exec(t, "create table saved as select * from epochfence.cas_item",
				"create table saved_number as select last_value from epochfence.cas_number")
			return func() { // at once, as members write meanwhile
				exec(t, `do $$ begin
					truncate epochfence.cas_item;
					insert into epochfence.cas_item select * from saved;
					perform setval('epochfence.cas_number', (select last_value from saved_number));
				end $$`)
			}
		},
		Empty: func(t testing.TB) {
			exec(t, "drop schema epochfence cascade")
			migrate(t)
		},
		Native: func(t testing.TB, key string) (value []byte) {
			if err := admin.QueryRow(t.Context(), "select value from epochfence.cas_item where key = $1", []byte(key)).Scan(&value); err != nil {
				t.Fatal(err)
			}
			return value
		},
	}
}

func pool(t testing.TB, server string, via func(string) string) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = via(u.Host)
	p, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func open(t testing.TB, p *pgxpool.Pool) *pgstore.Store {
	t.Helper()
	s, err := pgstore.Open(t.Context(), p, pgstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestEveryQueryModeOfThePoolWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			db := pgtest.Start(t)
			db.Odd(t)
			p := pool(t, db.URL+"&default_query_exec_mode="+mode, func(address string) string { return address })
			if err := pgsink.Migrate(t.Context(), p, pgsink.Options{}); err != nil {
				t.Fatal(err)
			}
			s := open(t, p)
			item, err := s.Swap(t.Context(), cas.Item{Key: "a\x00\xff'"}, []byte("\x00\\'\xff"), nil)
			if err == nil {
				item, err = s.Swap(t.Context(), item, []byte("x"), []byte("\x00\\'\xff"))
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Get(t.Context(), item.Key); err != nil || got.Version != item.Version || string(got.Note) != string(item.Note) {
				t.Errorf("%+v, %v, want %+v", got, err, item)
			}
			listed := 0
			for got, err := range s.List(t.Context(), "a\x00") {
				if listed++; err != nil || got.Version != item.Version {
					t.Errorf("listed: %+v, %v", got, err)
				}
			}
			if err := s.Delete(t.Context(), item); err != nil || listed != 1 {
				t.Errorf("%d listed; delete: %v", listed, err)
			}
			if now, err := s.Now(t.Context()); err != nil || time.Since(now).Abs() > time.Minute {
				t.Errorf("the server's clock: %v, %v", now, err)
			}
		})
	}
}

func TestOpenWantsTheSchemaOfThisVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	p := pool(t, db.URL, func(address string) string { return address })
	if _, err := pgstore.Open(t.Context(), p, pgstore.Options{}); !errors.Is(err, migrations.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	o := pgstore.Options{Schema: `the "app's"`}
	for range 2 {
		if err := pgsink.Migrate(t.Context(), p, pgsink.Options{Schema: o.Schema}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := pgstore.Open(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("x"), nil); err != nil {
		t.Error(err)
	}
	if _, err := p.Exec(t.Context(), `insert into "the ""app's""".migration values (1000, 'of another major number')`); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.Open(t.Context(), p, o); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("with tables of another major number: %v", err)
	}
}

func TestASerializableDatabaseConflictsInsteadOfFailing(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	admin := db.Superuser(t)
	if _, err := admin.Exec(t.Context(), "alter database "+pgx.Identifier{db.Name}.Sanitize()+" set default_transaction_isolation = 'serializable'"); err != nil {
		t.Fatal(err)
	}
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	s := open(t, pool(t, db.URL, func(address string) string { return address }))
	for range 50 {
		seen, err := s.Get(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 4)
		for range cap(results) {
			go func() {
				_, err := s.Swap(t.Context(), seen, []byte("x"), nil)
				results <- err
			}()
		}
		won := 0
		for range cap(results) {
			switch err := <-results; {
			case err == nil:
				won++
			case !errors.Is(err, cas.ErrConflict):
				t.Fatal(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d writes won", won)
		}
	}
}

// Items are created, changed and deleted at once, and an item has one row at any time.
func TestAnItemHasOneRowAtEachDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			db := pgtest.Start(t)
			admin := db.Superuser(t)
			if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
				t.Fatal(err)
			}
			s := open(t, pool(t, db.URL+"&default_transaction_isolation="+strings.ReplaceAll(level, " ", "%20"), func(address string) string { return address }))
			var mu sync.Mutex
			ended := map[string]int{} // by version
			created, deleted := 0, 0
			var writers sync.WaitGroup
			for writer := range 6 {
				writers.Go(func() {
					for i := range 200 {
						seen, err := s.Get(t.Context(), "orders")
						deletes := seen.Live && (writer+i)%3 == 0
						if err == nil && deletes {
							err = s.Delete(t.Context(), seen)
						} else if err == nil {
							_, err = s.Swap(t.Context(), seen, []byte("x"), nil)
						}
						if err != nil {
							if !errors.Is(err, cas.ErrConflict) {
								t.Error(err)
							}
							continue
						}
						mu.Lock()
						if !seen.Live {
							created++
						} else if ended[seen.Version]++; deletes {
							deleted++
						}
						mu.Unlock()
					}
				})
			}
			over := make(chan struct{})
			go func() { writers.Wait(); close(over) }()
			rows := 0
			for done := false; !done; {
				select {
				case <-over:
					done = true
				default:
				}
				if err := admin.QueryRow(t.Context(), "select count(*) from epochfence.cas_item").Scan(&rows); err != nil || rows > 1 {
					t.Fatalf("%d rows, %v", rows, err)
				}
			}
			if created-deleted != rows {
				t.Errorf("%d times created and %d times deleted, and there are %d rows", created, deleted, rows)
			}
			for version, n := range ended {
				if n != 1 {
					t.Errorf("%d writes replaced version %s", n, version)
				}
			}
		})
	}
}

// While somebody holds a snapshot, no dead version of a row is removed, and each write adds one.
func TestAnOldSnapshotDoesNotSlowAnItem(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	admin, holder := db.Superuser(t), db.Superuser(t)
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "begin isolation level repeatable read; select from pg_class limit 1"); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	last := &lastQuery{}
	config.ConnConfig.Tracer = last
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, items := open(t, p), []cas.Item{{Key: "orders"}, {Key: "payments"}, {Key: "stock"}}
	for i := range 10_000 {
		item := &items[i%len(items)]
		if *item, err = s.Swap(t.Context(), *item, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	item := items[0]
	if _, err := admin.Exec(t.Context(), "analyze epochfence.cas_item"); err != nil { // plans must not depend on it
		t.Fatal(err)
	}
	pages := func(args ...any) int {
		t.Helper()
		var text []byte
		if err := admin.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+last.sql, args...).Scan(&text); err != nil {
			t.Fatal(err)
		}
		var plans []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			t.Fatal(err)
		}
		return plans[0].Plan.Hit + plans[0].Plan.Read
	}
	const most = 20
	read := map[string]int{}
	key, none := []byte(item.Key), []byte{}
	for range 2 { // the first ones also plan
		if item, err = s.Get(t.Context(), item.Key); err != nil {
			t.Fatal(err)
		}
		get := pages(key)
		if _, err = s.GetAll(t.Context(), []string{item.Key}); err != nil {
			t.Fatal(err)
		}
		several := pages([][]byte{key})
		if item, err = s.Swap(t.Context(), item, none, none); err != nil {
			t.Fatal(err)
		}
		swap := pages(key, none, none, item.Version)
		read = map[string]int{"a get": get, "a get of several": several, "a swap": swap}
	}
	for what, pages := range read {
		if t.Logf("%s reads %d pages", what, pages); pages > most {
			t.Errorf("%s reads %d pages, want no more than %d", what, pages, most)
		}
	}
}

// lastQuery remembers the last query of a pool.
type lastQuery struct{ sql string }

func (l *lastQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	l.sql = q.SQL
	return ctx
}

func (l *lastQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestSettingsWithWhichItemsAreForgottenAreNoticedLater(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	admin := db.Superuser(t)
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	s := open(t, pool(t, db.URL, func(address string) string { return address }))
	good, err := s.Facts(t.Context())
	if err != nil || good.Forgets {
		t.Fatalf("%+v, %v", good, err)
	}
	const remedy = `ALTER TABLE "epochfence".cas_item SET LOGGED`
	if _, err := admin.Exec(t.Context(), "alter table epochfence.cas_item set unlogged"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Facts(t.Context()); !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("unlogged: %v", err)
	}
	if _, err := admin.Exec(t.Context(), remedy); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Facts(t.Context()); err != nil || now != good {
		t.Errorf("after the remedy: %+v, %v", now, err)
	}
	fast := open(t, pool(t, db.URL+"&synchronous_commit=off", func(address string) string { return address }))
	if f, err := fast.Facts(t.Context()); err != nil || !f.Forgets {
		t.Errorf("without synchronous_commit: %+v, %v", f, err)
	}
}

// A pool with several hosts may connect to a standby once the primary is away.
func TestAStandbyDoesNotAnswerAList(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	admin := db.Superuser(t)
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"create schema standby", "grant usage on schema standby to public",
		"create table standby.is ()", "grant select on standby.is to public",
		"create function standby.pg_is_in_recovery() returns bool volatile language sql as 'select exists (select from standby.is)'",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	p := pool(t, db.URL+"&search_path=standby,pg_catalog", func(address string) string { return address })
	s := open(t, p)
	listed := func() (err error) {
		for _, err = range s.List(t.Context(), "orders") {
		}
		return err
	}
	if err := listed(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), "insert into standby.is default values"); err != nil {
		t.Fatal(err)
	}
	_, notOpened := pgstore.Open(t.Context(), p, pgstore.Options{})
	_, noFacts := s.Facts(t.Context())
	for what, err := range map[string]error{"list": listed(), "facts": noFacts, "open": notOpened} {
		if err == nil || !strings.Contains(err.Error(), "is a standby") || what != "list" && !errors.Is(err, cas.ErrUnsuitable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
