package pgsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// rewriter is a query that says something else than it seems to.
type rewriter struct{ sql string }

func (r rewriter) RewriteQuery(_ context.Context, conn *pgx.Conn, _ string, args []any) (string, []any, error) {
	if conn != nil {
		return "", nil, errors.New("a query rewriter was given the connection")
	}
	return r.sql, args, nil
}

// leaving are functions of the database, by what they leave behind.
const leaving = `
create or replace function leaves_path() returns void language plpgsql as $$ begin perform set_config('search_path', 'elsewhere', false); end $$;
create or replace function leaves_role() returns void language plpgsql as $$ begin perform set_config('role', 'none', false); set local row_security = off; end $$;
create or replace function leaves_table() returns void language plpgsql as $$ begin create temp table left_over (a int); end $$;
create or replace function leaves_zone() returns void language plpgsql as $$ begin perform set_config('TimeZone', 'Asia/Tokyo', true); end $$`

// apartTexts change the transaction or the session for whoever shares it.
var apartTexts = []struct {
	sql  string
	args []any
}{
	{sql: "set local search_path = pg_catalog"},
	{sql: "set search_path = pg_catalog"},
	{sql: "select set_config('search_path', $1, true)", args: []any{"pg_catalog"}},
	{sql: "select set_config('search_path', $1, false)", args: []any{"pg_catalog"}},
	{sql: "", args: []any{rewriter{"set search_path = pg_catalog"}}},
	{sql: "set local role none"},
	{sql: "create temp table mine (a int)"},
	{sql: "create table pg_temp.mine (a int)"},
	{sql: "select 1 as a into temp mine"},
	{sql: "create temp table mine (a int) on commit drop"},
	{sql: "declare mine cursor for select 1"},
	{sql: "savepoint mine"},
	{sql: "set constraints all deferred"},
	{sql: "listen news"},
	{sql: "prepare mine as select 1"},
	{sql: "do $$ begin perform set_config('search_path', 'pg_catalog', false); end $$"},
	{sql: "select leaves_path()"},
	{sql: "select leaves_role()"},
	{sql: "select leaves_table()"},
	{sql: "select leaves_zone()"},
}

// TestWhatACallDoesToItsSessionNoOtherCallMeets: in company it is not sent, or found at
// the end, and nothing is committed. Alone it is sent, again and again. With EPOCHFENCE_LONG
// this holds for each mode that differs.
func TestWhatACallDoesToItsSessionNoOtherCallMeets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(leaving)
	names := []string{"cache_statement"}
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		names = append(names, "exec", "simple_protocol")
	}
	for _, name := range names {
		for _, queued := range []bool{false, true} {
			pool := newPool(t, r.appURL, modes[name], func(c *pgxpool.Config) { c.MaxConns = 2 })
			s := r.openOn(pool)
			p := orders
			p.Group = name
			if queued {
				p.Group += " queued"
			}
			seed(t, s, p)
			f := claim(t, s, p, 5)
			for _, text := range apartTexts {
				s := r.openOn(pool) // which takes sessions for being alike, until they are not
				guilty := func(ctx context.Context, tx execer) error {
					if err := put(ctx, tx, p.Group, "guilty"); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, text.sql, text.args...)
					return err
				}
				heedless := func(ctx context.Context, tx execer) error { _ = guilty(ctx, tx); return nil }
				innocent := func(ctx context.Context, tx execer) error { return put(ctx, tx, p.Group, "innocent") }
				commit := func(n epoch.Offset, calls ...func(context.Context, execer) error) error {
					if !queued {
						var of []func(context.Context, pgsink.Tx) error
						for _, call := range calls {
							of = append(of, func(ctx context.Context, tx pgsink.Tx) error { return call(ctx, tx) })
						}
						return s.Commit(t.Context(), advance(f, n), epoch.TxOptions{}, of...)
					}
					var of []func(context.Context, *pgsink.Queue) error
					for _, call := range calls {
						of = append(of, func(ctx context.Context, q *pgsink.Queue) error { return call(ctx, q) })
					}
					return s.Queued().Commit(t.Context(), advance(f, n), epoch.TxOptions{}, of...)
				}
				for _, last := range []func(context.Context, execer) error{guilty, heedless} {
					if err := commit(2, innocent, last); !errors.Is(err, epoch.ErrOwnTransaction) {
						t.Errorf("%s, %s: in company: %v", p.Group, text.sql, err)
					}
				}
				r.wantList(p.Group)
				for range 2 {
					if err := commit(1, guilty); err != nil {
						t.Fatalf("%s, %s: alone: %v", p.Group, text.sql, err)
					}
					f.Next++
				}
				if err := commit(2, innocent, innocent); err != nil {
					t.Fatalf("%s, after %s: %v", p.Group, text.sql, err)
				}
				f.Next += 2
				if hidden := strings.Contains(text.sql, "leaves_"); pgsink.Varies(s) && !hidden {
					t.Errorf("%s, after %s, which is known: the sink takes sessions for different ones", p.Group, text.sql)
				}
				r.wantList(p.Group, "guilty", "guilty", "innocent", "innocent")
				r.sql("truncate effects")
			}
		}
	}
}

// TestSessionsThatDifferBetweenTransactionsCostOneOfThem: others change them, or a pooler has
// several. What sessions are like is then read at each beginning.
func TestSessionsThatDifferBetweenTransactionsCostOneOfThem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, queued := range []bool{false, true} {
		paths, pids := 0, map[uint32]bool{}
		pool := newPool(t, r.appURL, func(c *pgxpool.Config) {
			c.MaxConns = 1
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				paths++
				_, err := conn.Exec(ctx, "select set_config('search_path', $1, false)", fmt.Sprintf("public, path%d", paths))
				return err == nil, err
			}
		})
		s := r.openOn(pool)
		p := orders
		p.Group = fmt.Sprintf("queued %v", queued)
		seed(t, s, p)
		f := claim(t, s, p, 5)
		var refused []int
		for n := range 10 {
			write := func(ctx context.Context, tx execer) error { return put(ctx, tx, p.Group, "effect") }
			var err error
			if queued {
				call := func(ctx context.Context, q *pgsink.Queue) error { return write(ctx, q) }
				err = s.Queued().Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, call, call)
			} else {
				call := func(ctx context.Context, tx pgsink.Tx) error { return write(ctx, tx) }
				err = s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, call, call)
			}
			switch {
			case errors.Is(err, epoch.ErrOwnTransaction):
				refused = append(refused, n)
			case err != nil:
				t.Fatal(err)
			default:
				f.Next += 2
			}
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pids[conn.Conn().PgConn().PID()] = true
			conn.Release()
		}
		if len(refused) != 1 || len(pids) > 1 {
			t.Errorf("queued %v: transactions %v were refused, with %d connections; want one refused, and one connection", queued, refused, len(pids))
		}
	}
}

// TestAStatementAfterWhichThePositionCannotBeMovedIsTheMessages, and not the database's.
func TestAStatementAfterWhichThePositionCannotBeMovedIsTheMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, err := tx.Exec(ctx, "set transaction read only")
		return err
	})
	var call *epoch.CallError
	if !errors.As(err, &call) || errors.Is(err, epoch.ErrUnhealthy) {
		t.Errorf("err = %v; want one of the call's", err)
	}
}

// TestACallbackOfABatchIsGivenRowsOfTheCall, without the connection.
func TestACallbackOfABatchIsGivenRowsOfTheCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	var kept pgx.Rows
	err := s.Commit(t.Context(), advance(claim(t, s, orders, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		b := &pgx.Batch{}
		b.Queue("select 1").Query(func(rows pgx.Rows) error {
			if rows.Conn() != nil {
				t.Error("rows have the connection")
			}
			kept = rows
			return nil
		})
		b.Queue(insert("list")).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				t.Errorf("%s", tag)
			}
			return nil
		})
		n := 0
		b.Queue("select 7").QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil || n != 7 {
			t.Errorf("%d, %v", n, err)
		}
		return nil
	})
	must(t, err)
	r.wantList("list", "1")
	if kept.Next() || !errors.Is(kept.Err(), pgsink.ErrTxClosed) {
		t.Errorf("rows of a call that has returned: %v", kept.Err())
	}
}

// TestATxOfADBThatIsLeftToItsContextDecidesItsOwnMessageAlone.
func TestATxOfADBThatIsLeftToItsContextDecidesItsOwnMessageAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, leave := range map[string]func(ctx context.Context, cancel func(), db *sql.DB, tx *sql.Tx) error{
		"cancelled at return": func(_ context.Context, cancel func(), _ *sql.DB, _ *sql.Tx) error { defer cancel(); return nil },
		"never ended":         func(context.Context, func(), *sql.DB, *sql.Tx) error { return nil },
		"its DB is closed":    func(_ context.Context, _ func(), db *sql.DB, _ *sql.Tx) error { return db.Close() },
		"cancelled, and rolled back": func(_ context.Context, cancel func(), _ *sql.DB, tx *sql.Tx) error {
			cancel()
			_ = tx.Rollback()
			return nil
		},
	} {
		err := s.Commit(t.Context(), advance(f, 3), epoch.TxOptions{},
			putting("list", "innocent"),
			func(ctx context.Context, tx pgsink.Tx) error {
				within, cancel := context.WithCancel(ctx)
				t.Cleanup(cancel)
				db := pgsink.OpenDB(tx)
				dbtx, err := db.BeginTx(within, nil)
				must(t, err)
				if _, err := dbtx.ExecContext(ctx, insert("list")); err != nil {
					return err
				}
				return leave(ctx, cancel, db, dbtx)
			},
			putting("list", "innocent too"))
		var call *epoch.CallError
		if !errors.As(err, &call) || call.Call != 1 {
			t.Errorf("%s: err = %v; want that of the second call", name, err)
		}
		r.wantList("list")
	}
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("list", "as ever")); err != nil {
		t.Error(err)
	}
	r.wantList("list", "as ever")
}

// TestARoleThatACallSetsIsItsOwn: the sink moves the position as itself.
func TestARoleThatACallSetsIsItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var role string
	must(t, r.admin.QueryRow(t.Context(), "select quote_ident('tenant_' || md5(random()::text))").Scan(&role))
	r.sql("create role " + role + "; grant insert on effects to " + role + "; grant " + role + " to " + r.role)
	t.Cleanup(func() {
		_, _ = r.admin.Exec(context.WithoutCancel(t.Context()), "drop owned by "+role+"; drop role "+role)
	})
	for _, name := range []string{"cache_statement", "exec", "simple_protocol"} {
		s := r.openOn(newPool(t, r.appURL, modes[name], func(c *pgxpool.Config) { c.MaxConns = 1 }))
		p := orders
		p.Group = name
		seed(t, s, p)
		f := claim(t, s, p, 5)
		set := func(set string) func(context.Context, execer) error {
			return func(ctx context.Context, tx execer) error {
				if _, err := tx.Exec(ctx, set+role); err != nil {
					return err
				}
				return put(ctx, tx, name, set)
			}
		}
		sets := []string{"set local role ", "set local role ", "set role ", "set role "} // on a connection that is known, and on a new one
		for _, text := range sets {
			must(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return set(text)(ctx, tx) }))
			f.Next++
			must(t, s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return set(text)(ctx, q) }))
			f.Next++
		}
		r.wantList(name, sets[0], sets[0], sets[1], sets[1], sets[2], sets[2], sets[3], sets[3])
	}
}

// TestACopyFromTheClientIsRefusedAndCostsNoConnection, queued and not.
func TestACopyFromTheClientIsRefusedAndCostsNoConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	send := func(ctx context.Context, tx execer) error {
		_, err := tx.Exec(ctx, "copy effects (list, value) from stdin")
		return err
	}
	bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second) // or one that is sent waits for a client that waits for it
	defer cancel()
	for form, err := range map[string]error{
		"a handler": s.Commit(bounded, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return send(ctx, tx) }),
		"a queue":   s.Queued().Commit(bounded, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return send(ctx, q) }),
	} {
		var call *epoch.CallError
		if !errors.As(err, &call) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: err = %v; want one of the call's", form, err)
		}
	}
}
