package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestAFailedQueuedStatementIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, mode := range modes {
		s := r.openOn(r.pool(mode)).Queued()
		p := orders
		p.Group = name
		seed(t, s.Sink, p)
		f := claim(t, s.Sink, p, 5)
		for _, bad := range []struct {
			what, sql string
			args      []any
			code      string
			anonymous bool // in the simple protocol, where the whole is one text, or one without types
		}{
			{"a constraint", "insert into effects (list, value) values ($1::text, 'refused')", []any{"x"}, "23514", false},
			{"a table that does not exist", "insert into nowhere values ($1::text)", []any{"x"}, "42P01", false},
			{"a permission", "delete from effects where value = $1::text", []any{"x"}, "42501", false},
			{"a syntax error", "insert into effects valuse ($1::text)", []any{"x"}, "42601", name == "simple_protocol"},
			{"an argument of no type", "insert into effects (value) values ($1::text)", []any{make(chan int)}, "", true},
		} {
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
				for i := range 5 {
					if i == 2 {
						if _, err := q.Exec(ctx, bad.sql, bad.args...); err != nil {
							return err
						}
						continue
					}
					if err := put(ctx, q, "queued", fmt.Sprint(i)); err != nil {
						return err
					}
				}
				return nil
			})
			var statement *pgsink.StatementError
			var pg *pgconn.PgError
			if err == nil || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, pgsink.ErrPermission) || errors.Is(err, migrations.ErrNotMigrated) {
				t.Errorf("%s, %s: err = %v", name, bad.what, err)
			}
			if !bad.anonymous && (!errors.As(err, &statement) || statement.Number != 3 || statement.Of != 5 || statement.SQL != bad.sql) {
				t.Errorf("%s, %s: err = %v; want it to name statement 3 of 5", name, bad.what, err)
			}
			if bad.code != "" && (!errors.As(err, &pg) || pg.Code != bad.code) {
				t.Errorf("%s, %s: err = %v; want %s", name, bad.what, err, bad.code)
			}
		}
		if again, err := epoch.FenceOf(t.Context(), s, p); err != nil || again != f {
			t.Errorf("%s: the fence is %+v, %v; want %+v", name, again, err, f)
		}
	}
	r.wantList("queued")
}

func TestAQueuedStatementIsNotNamedForAnothersArgument(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open().Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		const sql = "insert into effects (value) values ($1::text)"
		_, err := q.Exec(ctx, sql, "fine")
		if err == nil {
			_, err = q.Exec(ctx, sql, make(chan int))
		}
		return err
	})
	var statement *pgsink.StatementError
	if !errors.As(err, &statement) || statement.Number != 0 || statement.Of != 2 || errors.Is(err, epoch.ErrInDoubt) {
		t.Fatalf("err = %v; want one of the two", err)
	}
}

func TestAQueueKeepsItsOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open().Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	const n = 3000 // more than any buffer on the way takes at once
	var all []string
	err := s.Commit(t.Context(), advance(f, n), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		for i := range n {
			all = append(all, fmt.Sprint(i, strings.Repeat(" ", 500)))
			if err := put(ctx, q, "long", all[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.wantList("long", all...)
}

func TestAQueueIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open().Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		for {
			if _, err := q.Exec(ctx, "select 1"); err != nil {
				return err
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "may queue 65536 statements") {
		t.Fatalf("err = %v", err)
	}
}

func TestAQueueHasNothingToRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open().Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		rows, err := q.Query(ctx, "select 1")
		if err == nil || rows.Next() || rows.Err() == nil {
			t.Errorf("Query: err = %v", err)
		}
		return q.QueryRow(ctx, "select 1").Scan(new(int))
	})
	if err == nil || !strings.Contains(err.Error(), "no results to read") {
		t.Errorf("QueryRow: err = %v", err)
	}
}

func TestAQueryRewriterMayUseItsQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open().Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		_, err := q.Exec(ctx, "", rewrite(func(*pgx.Conn) string {
			must(t, put(ctx, q, "list", "inner"))
			return "insert into effects (list, value) values ('list', 'outer')"
		}))
		return err
	})
	must(t, err)
	r.wantList("list", "inner", "outer")
}
