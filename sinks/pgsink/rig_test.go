package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// rig is a migrated database, and an application's role that may do no more
// than an application needs.
type rig struct {
	testing.TB
	db     *pgtest.Database
	admin  *pgx.Conn
	role   string
	appURL string

	operators    string // a role of people who act, and may end the application's connections
	operatorsURL string
	schema       string
	reader       *pgxpool.Pool // as the superuser
}

// effectsTable is what handlers of these tests write to: effects are the
// lists of the suite, stock is a row that transactions fight over.
const effectsTable = `
	create table effects (n bigint generated always as identity, list text, value text, check (value <> 'refused'));
	create table stock (item int primary key, left_over int not null);
	insert into stock values (1, 100), (2, 100);`

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigIn(t, "")
}

func newRigIn(t testing.TB, schema string) *rig {
	t.Helper()
	return newRigOn(t, pgtest.Start(t), schema)
}

func newRigOn(t testing.TB, db *pgtest.Database, schema string) *rig {
	t.Helper()
	r := &rig{TB: t, db: db, schema: schema}
	r.admin, r.reader = r.db.Superuser(t), newPool(t, r.db.URL)
	r.role, r.appURL = r.db.Role(t)
	if err := pgsink.Migrate(t.Context(), r.admin, pgsink.Options{Schema: r.schema}); err != nil {
		t.Fatal(err)
	}
	if err := pgsink.Grant(t.Context(), r.admin, r.role, pgsink.Options{Schema: r.schema}); err != nil {
		t.Fatal(err)
	}
	r.operators, r.operatorsURL = r.db.Role(t)
	r.grant(pgsink.GrantOperatorSQL, r.operators)
	r.sql("grant " + r.role + " to " + r.operators)
	r.sql(effectsTable + "grant select, insert, update on effects, stock to " + r.role)
	return r
}

// sql runs statements as the superuser.
func (r *rig) sql(sql string) {
	r.Helper()
	if _, err := r.admin.Exec(r.Context(), sql); err != nil {
		r.Fatal(err)
	}
}

// grant gives a role what sql says.
func (r *rig) grant(sql func(string, pgsink.Options) (string, error), role string) {
	r.Helper()
	text, err := sql(role, pgsink.Options{Schema: r.schema})
	if err != nil {
		r.Fatal(err)
	}
	r.sql(text)
}

// operator is what people operate the schema with.
func (r *rig) operator(t testing.TB) operate.Operator {
	t.Helper()
	return r.operatorAt(t, r.operatorsURL)
}

func (r *rig) operatorAt(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgsink.Operator {
	t.Helper()
	op, err := pgsink.OpenOperator(t.Context(), newPool(t, url, configure...), pgsink.Options{Schema: r.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// pool connects as the application.
func (r *rig) pool(configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	r.Helper()
	return newPool(r.TB, r.appURL, configure...)
}

func newPool(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	for _, c := range configure {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// open is one more process's sink.
func (r *rig) open(configure ...func(*pgsink.Options)) *pgsink.Sink {
	r.Helper()
	return r.openOn(r.pool(), configure...)
}

func (r *rig) openOn(pool *pgxpool.Pool, configure ...func(*pgsink.Options)) *pgsink.Sink {
	r.Helper()
	o := pgsink.Options{Schema: r.schema, Logger: slog.New(slog.DiscardHandler)}
	for _, c := range configure {
		c(&o)
	}
	s, err := pgsink.Open(r.Context(), pool, o)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *rig) list(ctx context.Context, list string) ([]string, error) {
	table := pgx.Identifier{"effects"}
	if r.schema != "" {
		table = pgx.Identifier{r.schema, "effects"}
	}
	rows, err := r.reader.Query(ctx, "select value from "+table.Sanitize()+" where list = $1 order by n", list)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// wantList fails the test unless the list holds exactly these values.
func (r *rig) wantList(list string, want ...string) {
	r.Helper()
	got, err := r.list(r.Context(), list)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		r.Fatalf("list %q holds %q, %v; want %q", list, got, err, want)
	}
}

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

func origin(p epoch.Partition) epoch.Origin {
	return epoch.Origin{Partition: p, Log: "log", Source: "source"}
}

func lease(p epoch.Partition, number int64) epoch.Lease {
	return epoch.Lease{Origin: origin(p), Generation: number, Owner: fmt.Sprintf("worker-%d", number)}
}

func seed(t testing.TB, s *pgsink.Sink, ps ...epoch.Partition) {
	t.Helper()
	for _, p := range ps {
		if err := s.Seed(t.Context(), []epoch.Start{{Origin: origin(p)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// claim reads the fence and swaps a claim of that number in.
func claim(t testing.TB, s *pgsink.Sink, p epoch.Partition, number int64) epoch.Fence {
	t.Helper()
	f, err := tryClaim(t.Context(), s, p, number)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func tryClaim(ctx context.Context, s *pgsink.Sink, p epoch.Partition, number int64) (epoch.Fence, error) {
	seen, err := epoch.FenceOf(ctx, s, p)
	if err != nil {
		return seen, err
	}
	return s.Claim(ctx, seen, epoch.NewClaim(lease(p, number)))
}

func advance(f epoch.Fence, messages epoch.Offset) []epoch.Advance {
	return []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + messages}}
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// put appends a value to a list.
func put(ctx context.Context, tx execer, list, value string) error {
	_, err := tx.Exec(ctx, "insert into effects (list, value) values ($1::text, $2::text)", list, value)
	return err
}

func putting(list, value string) func(context.Context, pgsink.Tx) error {
	return func(ctx context.Context, tx pgsink.Tx) error { return put(ctx, tx, list, value) }
}

func queueing(list, value string) func(context.Context, *pgsink.Queue) error {
	return func(ctx context.Context, q *pgsink.Queue) error { return put(ctx, q, list, value) }
}

// want fails the test unless err is target and, where target is one of the
// protocol's refusals, no other of them.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("err = %v; want %v", err, target)
	}
	for _, other := range []error{epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler} {
		if !errors.Is(other, target) && errors.Is(err, other) {
			t.Fatalf("err = %v; want %v and not %v", err, target, other)
		}
	}
}

// eventually polls the database, for what it tells nobody.
func (r *rig) eventually(what, query string, args ...any) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var yes bool
		if err := r.reader.QueryRow(ctx, query, args...).Scan(&yes); err != nil {
			r.Fatalf("%s: %v", what, err)
		}
		if yes {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.Fatalf("%s: not within 20 s", what)
		}
	}
}
