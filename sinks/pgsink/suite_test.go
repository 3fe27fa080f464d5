package pgsink_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// Many tests wait for a lock, or for a server that does not answer, and a history at
// random takes a tenth of a second here. The command line goes before this.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6")
	_ = flag.Set("rapid.checks", "30")
	os.Exit(m.Run())
}

// schemas makes each database of the suite a schema of one database, under a
// name that needs its quotes. A third of what PostgreSQL does for a history is to
// make one, so the next history has it, empty, if nothing holds its rows any more.
type schemas struct {
	rig  *rig
	mu   sync.Mutex
	free []string
}

// schemaNumber makes their names different.
var schemaNumber atomic.Int64

func (s *schemas) create(t testing.TB) *rig {
	t.Helper()
	r := *s.rig
	r.TB = t
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		r.schema, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	if r.schema == "" {
		r.schema = fmt.Sprintf(`Fences of "Größe" %d`, schemaNumber.Add(1))
		s.migrate(t, &r)
	}
	t.Cleanup(func() { // after those of the pools, which are opened later
		if !t.Failed() && s.emptied(r.schema) == nil {
			s.mu.Lock()
			s.free = append(s.free, r.schema)
			s.mu.Unlock()
		}
	})
	return &r
}

func (s *schemas) emptied(schema string) error {
	const sql = `set local lock_timeout = '1s';
		do $$ declare t name; begin
			for t in select tablename from pg_tables where schemaname = %s and tablename not in ('migration', 'cas_source') loop
				execute format('delete from %%I.%%I', %[1]s, t);
			end loop;
		end $$`
	_, err := s.rig.reader.Exec(context.Background(), fmt.Sprintf(sql, "'"+schema+"'"))
	return err
}

func (s *schemas) migrate(t testing.TB, r *rig) {
	t.Helper()
	quoted := pgx.Identifier{r.schema}.Sanitize()
	steps, err := pgsink.Migrations(pgsink.Options{Schema: r.schema})
	if err != nil {
		t.Fatal(err)
	}
	grant, err := pgsink.GrantSQL(r.role, pgsink.Options{Schema: r.schema})
	if err != nil {
		t.Fatal(err)
	}
	sql := "set synchronous_commit = off;"
	for _, m := range steps {
		sql += m.SQL
	}
	forOperators, err := pgsink.GrantOperatorSQL(r.operators, pgsink.Options{Schema: r.schema})
	if err != nil {
		t.Fatal(err)
	}
	sql += grant + forOperators + "create table " + quoted + ".effects (n bigint generated always as identity, list text, value text);" +
		"grant insert on " + quoted + ".effects to " + r.role
	if _, err := r.reader.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) append(ctx context.Context, tx execer, list, value string) error {
	_, err := tx.Exec(ctx, "insert into "+pgx.Identifier{r.schema, "effects"}.Sanitize()+" (list, value) values ($1::text, $2::text)", list, value)
	return err
}

// lock is a transaction that has locked the effects.
func (r *rig) lock(t testing.TB) (unlock func()) {
	tx, err := r.reader.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "lock table "+pgx.Identifier{r.schema, "effects"}.Sanitize())
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

func commit(ctx context.Context, tx execer) error {
	_, err := tx.Exec(ctx, "commit")
	return err
}

func suiteOn(r *rig, url string, configure ...func(*pgxpool.Config)) func(testing.TB) sinktest.Database[pgsink.Tx] {
	s := &schemas{rig: r}
	return func(t testing.TB) sinktest.Database[pgsink.Tx] {
		r := s.create(t)
		return sinktest.Database[pgsink.Tx]{
			Open: func(t testing.TB) epoch.Sink[pgsink.Tx] {
				return r.openOn(newPool(t, url, append(configure, fast)...))
			},
			Append: func(ctx context.Context, tx pgsink.Tx, list, value string) error {
				return r.append(ctx, tx, list, value)
			},
			List:       r.list,
			Commit:     func(ctx context.Context, tx pgsink.Tx) error { return commit(ctx, tx) },
			Lock:       r.lock,
			Operator:   r.operator,
			DeadLetter: r.openOn(newPool(t, url, append(configure, fast)...)).DeadLetter,
		}
	}
}

func queuedSuiteOn(r *rig, url string, configure ...func(*pgxpool.Config)) func(testing.TB) sinktest.Database[*pgsink.Queue] {
	s := &schemas{rig: r}
	return func(t testing.TB) sinktest.Database[*pgsink.Queue] {
		r := s.create(t)
		return sinktest.Database[*pgsink.Queue]{
			Open: func(t testing.TB) epoch.Sink[*pgsink.Queue] {
				return r.openOn(newPool(t, url, append(configure, fast)...)).Queued()
			},
			Append: func(ctx context.Context, q *pgsink.Queue, list, value string) error {
				return r.append(ctx, q, list, value)
			},
			List:       r.list,
			Commit:     func(ctx context.Context, q *pgsink.Queue) error { return commit(ctx, q) },
			Lock:       r.lock,
			Operator:   r.operator,
			DeadLetter: r.openOn(newPool(t, url, append(configure, fast)...)).Queued().DeadLetter,
		}
	}
}

// TestSuite plays the suite in the way in which pgx sends a statement by default, and
// with EPOCHFENCE_LONG in those that differ most from it, and with operators beside
// queues. Queues play it whole where the environment names a server, as in CI. Other
// tests go through all of these.
func TestSuite(t *testing.T) {
	t.Parallel()
	names, long, named := []string{"cache_statement"}, os.Getenv("EPOCHFENCE_LONG") != "", os.Getenv(pgtest.Env) != ""
	if long {
		names = append(names, "exec", "simple_protocol")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if len(names) > 1 { // else what takes longest would wait in line once more
				t.Parallel()
			}
			r, mode := newRig(t), modes[name]
			t.Run("queries", func(t *testing.T) { t.Parallel(); sinktest.Run(t, suiteOn(r, r.appURL, mode)) })
			t.Run("queries, operated", func(t *testing.T) { t.Parallel(); sinktest.RunOperated(t, suiteOn(r, r.appURL, mode)) })
			t.Run("queries, unblocked", func(t *testing.T) { t.Parallel(); sinktest.RunUnblocked(t, suiteOn(r, r.appURL, mode)) })
			t.Run("queue, unblocked", func(t *testing.T) { t.Parallel(); sinktest.RunUnblocked(t, queuedSuiteOn(r, r.appURL, mode)) })
			if long || named {
				t.Run("queue", func(t *testing.T) { t.Parallel(); sinktest.Run(t, queuedSuiteOn(r, r.appURL, mode)) })
			}
			if long {
				t.Run("queue, operated", func(t *testing.T) { t.Parallel(); sinktest.RunOperated(t, queuedSuiteOn(r, r.appURL, mode)) })
			}
		})
	}
}

// fast spares the suite, which crashes no server, the wait for the disk at each
// of its many commits.
func fast(c *pgxpool.Config) { runtimeParam("synchronous_commit", "off")(c) }
