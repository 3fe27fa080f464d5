package pgsink_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// insert is an effect of the list.
func insert(list string) string {
	return "insert into effects (list, value) values ('" + list + "', '1')"
}

// whatever is what handlers send, LIST being that of the round.
var whatever = []string{
	"INSERT", "INSERT", "INSERT", "INSERT;", "INSERT -- of this round", "/* one */ INSERT", "INSERT; INSERT",
	"INSERT; select 1", "select 1; select 2; INSERT", "INSERT; select 1; commit", "select 1", "select generate_series(1, 3)",
	"", ";", "-- nothing", "/* nothing */", ";;",
	"commit", "rollback", "begin", "commit; begin", "commit; begin; INSERT", setEscapes, hidden("commit"), hidden("rollback"), hidden("commit; begin"), hidden("rollback and chain"), "rollback; begin", "commit and chain", "rollback and chain",
	"INSERT; commit", "commit; INSERT", "commit --", "commit; select 1", "end", "abort",
	"savepoint a", "rollback to savepoint a", "release savepoint a", "savepoint a; INSERT; rollback to a",
	"select 1/0", "INSERT; select 1/0", "insert into nowhere values (1)", "savepoint a; select 1/0",
	"do $$ begin INSERT; end $$", "do $$ begin raise exception using errcode = 'XF001'; end $$",
	"do $$ begin raise exception using errcode = 'XF004', detail = '{}', hint = 'x'; end $$", "do $$ begin execute 'deallocate all'; end $$",
	"prepare transaction 'x'", "set transaction read only", "set local statement_timeout = 0", "set application_name = 'x'", "reset all", "RESET ALL; INSERT",
	"deallocate all", "INSERT; deallocate all", "discard all", "discard temp", "listen news", "set constraints all deferred",
	"set session characteristics as transaction read only", "set role none", "lock table effects in row exclusive mode",
	"select set_config('epochfence.transaction', '', false)", "create temp table leftover (a int)", "prepare p as select 1",
	"/* not closed", "select 'not closed", "select $$not closed",
}

// TestWhateverAHandlerSendsItsOutcomeIsTold: nil is that all of it is committed
// with the advance, an escape that the advance is not, and any other error that
// is not in doubt that nothing is.
func TestWhateverAHandlerSendsItsOutcomeIsTold(t *testing.T) {
	t.Parallel()
	rounds := 60
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		rounds = 600
	}
	r := newRig(t)
	r.sql("create index on effects (list)")
	for name, mode := range modes {
		for _, queued := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, queued %v", name, queued), func(t *testing.T) {
				t.Parallel()
				s := r.openOn(newPool(t, r.appURL, mode, fast))
				p := orders
				p.Group = t.Name()
				seed(t, s, p)
				f := claim(t, s, p, 5)
				rng := rand.New(rand.NewPCG(uint64(len(name)), uint64(rounds)))
				for round := range rounds {
					list := fmt.Sprintf("%s %d", name, round)
					if queued {
						list += " queued"
					}
					var texts []string
					for range 1 + rng.IntN(4) {
						texts = append(texts, strings.ReplaceAll(whatever[rng.IntN(len(whatever))], "INSERT", insert(list)))
					}
					careless := rng.IntN(2) == 0 // of errors
					send := func(ctx context.Context, tx execer) error {
						for _, text := range texts {
							if _, err := tx.Exec(ctx, text); err != nil && !careless {
								return err
							}
						}
						return nil
					}
					var err error
					if queued {
						err = s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return send(ctx, q) })
					} else {
						err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return send(ctx, tx) })
					}
					again, ferr := epoch.FenceOf(t.Context(), s, p)
					effects, lerr := r.list(t.Context(), list)
					if ferr != nil || lerr != nil {
						t.Fatal(ferr, lerr)
					}
					all := strings.Join(texts, "\n")
					undone := strings.Contains(strings.ToLower(all), "rollback") || strings.Contains(all, "abort")
					moved := again.Next == f.Next+1
					switch {
					case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrMoved), errors.Is(err, epoch.ErrMissing), errors.Is(err, epoch.ErrInDoubt):
						t.Errorf("%q, careless %v: err = %v", texts, careless, err)
					case err == nil && (!moved || !undone && !careless && len(effects) != strings.Count(all, "insert into effects")):
						t.Errorf("%q, careless %v: err is nil; the fence moved: %v; %d effects", texts, careless, moved, len(effects))
					case errors.Is(err, epoch.ErrTxEndedByHandler) && moved, err != nil && !errors.Is(err, epoch.ErrTxEndedByHandler) && (moved || len(effects) > 0):
						t.Errorf("%q, careless %v: err = %v; the fence moved: %v; %d effects", texts, careless, err, moved, len(effects))
					}
					f = again
				}
			})
		}
	}
}

// TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn: whatever it sends next is
// refused. Of a queue everything is sent at once, and what was committed is told.
func TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, mode := range modes {
		s := r.openOn(r.pool(mode))
		p := orders
		p.Group = name
		seed(t, s, p)
		f := claim(t, s, p, 5)
		for _, texts := range [][]string{
			{hidden("rollback and chain"), insert(name), hidden("commit and chain"), "select 1/0"},
			{hidden("rollback"), hidden("begin"), insert(name), hidden("commit"), hidden("begin"), "select 1/0"},
			{hidden("/* a; b */ rollback; begin"), insert(name), hidden("end; begin"), "select 1/0"},
			{hidden("abort and chain"), insert(name), hidden("end and chain"), "release savepoint a"},
		} {
			for _, careless := range []bool{false, true} {
				send := func(ctx context.Context, tx execer) error {
					for _, text := range append([]string{setEscapes}, texts...) {
						if _, err := tx.Exec(ctx, text); err != nil && !careless {
							return err
						}
					}
					return nil
				}
				err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return send(ctx, tx) })
				var call *epoch.CallError
				if !errors.As(err, &call) || errors.Is(err, epoch.ErrTxEndedByHandler) {
					t.Errorf("%s: %q, careless %v: err = %v; want one of the call's", name, texts, careless, err)
				}
			}
			r.wantList(name)
			before, _ := r.list(t.Context(), name)
			err := s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
				for _, text := range append([]string{setEscapes}, texts...) {
					if _, err := q.Exec(ctx, text); err != nil {
						return err
					}
				}
				return nil
			})
			after, _ := r.list(t.Context(), name)
			r.sql("truncate effects")
			if len(after) > len(before) != errors.Is(err, epoch.ErrTxEndedByHandler) || err == nil {
				t.Errorf("%s: %q, queued: err = %v; %d effects", name, texts, err, len(after)-len(before))
			}
		}
		if again, err := epoch.FenceOf(t.Context(), s, p); err != nil || again != f {
			t.Errorf("%s: the fence is %+v, %v; want %+v", name, again, err, f)
		}
	}
}

// TestAnAnswerIsThatOfItsStatement, however many a text holds.
func TestAnAnswerIsThatOfItsStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.openOn(r.pool(modes["simple_protocol"])).Queued()
	seed(t, s.Sink, orders)
	f := claim(t, s.Sink, orders, 5)
	for text, result := range map[string]error{
		insert("one") + "; select 1; commit":     epoch.ErrTxControl,
		insert("two") + "; select 1":             nil,
		"-- nothing":                             nil,
		insert("three") + "; select 1; select 2": nil,
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
			_, err := q.Exec(ctx, text)
			return err
		})
		again, _ := epoch.FenceOf(t.Context(), s, orders)
		if !errors.Is(err, result) || (again.Next > f.Next) != (err == nil) {
			t.Errorf("%s: err = %v, want %v; the fence went from %d to %d", text, err, result, f.Next, again.Next)
		}
		f = again
	}
	r.wantList("two", "1")
	r.wantList("three", "1")
}

// hostileArg is an argument.
type hostileArg func()

func (h hostileArg) Value() (driver.Value, error) { h(); return "1", nil }

// TestAnArgumentThatPanicsCostsItsTransaction and not the process.
func TestAnArgumentThatPanicsCostsItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, mode := range modes {
		s := r.openOn(r.pool(mode)).Queued()
		p := orders
		p.Group = name
		seed(t, s.Sink, p)
		f := claim(t, s.Sink, p, 5)
		commit := func(arg any) error {
			return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
				for _, v := range []any{"1", arg} {
					if _, err := q.Exec(ctx, "insert into effects (list, value) values ('hostile', $1::text)", v); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for range 2 { // the statement is prepared
			err := commit(hostileArg(func() { panic("out of stock") }))
			var statement *pgsink.StatementError
			if !errors.As(err, &statement) || !strings.Contains(err.Error(), "panicked: out of stock") || errors.Is(err, epoch.ErrInDoubt) {
				t.Errorf("%s: err = %v", name, err)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := commit(hostileArg(runtime.Goexit))
			t.Errorf("%s: Commit returned %v after its goroutine had ended", name, err)
		}()
		<-done
		if again, err := epoch.FenceOf(t.Context(), s, p); err != nil || again != f {
			t.Errorf("%s: the fence is %+v, %v; want %+v", name, again, err, f)
		}
		if err := commit(hostileArg(func() {})); err != nil {
			t.Errorf("%s: and then: %v", name, err)
		}
	}
}

// TestASourceOfACopyThatPanicsCostsItsTransaction, like an argument: pgx asks it
// on a goroutine of its own.
func TestASourceOfACopyThatPanicsCostsItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	boom := func() { panic("out of stock") }
	commit := func(source pgx.CopyFromSource) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			n, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, source)
			if err == nil && n != 3 {
				t.Errorf("copied %d rows", n)
			}
			return err
		})
	}
	rows := func(at func() any) pgx.CopyFromSource {
		n := 0
		return pgx.CopyFromFunc(func() ([]any, error) {
			if n++; n > 3 {
				return nil, nil
			}
			if n == 3 {
				return []any{"copied", at()}, nil
			}
			return []any{"copied", "1"}, nil
		})
	}
	for name, c := range map[string]struct {
		source pgx.CopyFromSource
		want   string
	}{
		"a row":          {rows(func() any { boom(); return nil }), "out of stock"},
		"a value":        {rows(func() any { return hostileArg(boom) }), "out of stock"},
		"an error":       {pgx.CopyFromFunc(func() ([]any, error) { return nil, errors.New("no more") }), "no more"},
		"a missing one":  {pgx.CopyFromRows([][]any{{"copied"}}), "expected 2 values"},
		"one of no type": {pgx.CopyFromRows([][]any{{"copied", make(chan int)}}), "encode"},
	} {
		if err := commit(c.source); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: err = %v; want %q", name, err, c.want)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.Errorf("Commit returned %v after its goroutine had ended", commit(rows(func() any { runtime.Goexit(); return nil })))
	}()
	<-ended
	if err := commit(rows(func() any { return hostileArg(func() {}) })); err != nil {
		t.Error(err)
	}
	r.wantList("copied", "1", "1", "1")
}

// TestAHandlersOwnSQLSTATEIsNotTheSinks, whichever it is.
func TestAHandlersOwnSQLSTATEIsNotTheSinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	r.sql(`create function raises(code text, detail text) returns void language plpgsql as $$ begin raise exception using errcode = code, detail = detail; end $$`)
	const detail = `{"group_name": "billing", "topic": "orders", "partition": 3, "claim_id": "00000000-0000-0000-0000-000000000000"}`
	for n := 1; n < 10; n++ {
		code := fmt.Sprintf("XF00%d", n)
		sql := "select raises('" + code + "', '" + detail + "')"
		for form, err := range map[string]error{
			"handler": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { _, err := tx.Exec(ctx, sql); return err }),
			"queue":   s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { _, err := q.Exec(ctx, sql); return err }),
		} {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != code {
				t.Errorf("%s, %s: err = %v", form, code, err)
			}
			for _, refusal := range []error{epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler} {
				if errors.Is(err, refusal) {
					t.Errorf("%s, %s: err = %v, which is %v", form, code, err, refusal)
				}
			}
		}
	}
}

// TestWhatAHandlerDoesToItsSessionStaysInItsTransaction: neither does the
// transaction rest on it, nor does the next one meet with it.
func TestWhatAHandlerDoesToItsSessionStaysInItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"cache_statement", "simple_protocol"} {
		var w wire
		pool := r.pool(modes[name], w.one)
		s := r.openOn(pool)
		p := orders
		p.Group = name
		seed(t, s, p)
		f := claim(t, s, p, 5)
		for _, sql := range []string{
			"reset all", "deallocate all", "do $$ begin execute 'deallocate all'; end $$", "discard temp", "listen news", "set application_name = 'poisoned'",
			"set role none", "select pg_advisory_lock(1)", "prepare twice as select 1", "create temp table twice (a int)",
			"-- name: Twice :exec\nset search_path = nowhere", "select set_config('lock_timeout', '1', false)",
			`select U&"pg\005fadvisory_lock"(1)`, "select ts_stat('select to_tsvector(pg_advisory_lock(1)::text)')",
		} {
			for _, queued := range []bool{false, true} {
				commit := func(sql string) error {
					if queued {
						return s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
							if err := put(ctx, q, name, sql); err != nil {
								return err
							}
							_, err := q.Exec(ctx, sql)
							return err
						})
					}
					return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
						if err := put(ctx, tx, name, sql); err != nil {
							return err
						}
						_, err := tx.Exec(ctx, sql)
						return err
					})
				}
				for range 1 + strings.Count(sql, "twice") {
					if err := commit(sql); err != nil {
						t.Fatalf("%s, queued %v, %s: %v", name, queued, sql, err)
					}
					f.Next++
				}
				var left int
				err := pool.QueryRow(t.Context(), `select (select count(*) from pg_listening_channels()) +
					(select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory') +
					(select count(*) from pg_settings where source = 'session' and name in ('application_name', 'search_path', 'lock_timeout')) +
					(select count(*) from pg_prepared_statements where name = 'twice') + (select count(*) from pg_class where relnamespace = pg_my_temp_schema())`).Scan(&left)
				if err != nil || left > 0 {
					t.Errorf("%s, queued %v, %s: %d traces of it are left, %v", name, queued, sql, left, err)
				}
			}
		}
	}
}

// TestTheConnectionIsClosedBehindATextThatIsNotPlain, and kept behind others: closing it costs more
// than all else.
func TestTheConnectionIsClosedBehindATextThatIsNotPlain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := r.openOn(pool)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	pid := func() (pid uint32) {
		must(t, pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error { pid = conn.Conn().PgConn().PID(); return nil }))
		return pid
	}
	for sql, kept := range map[string]bool{
		insert("a"):                                  true,
		"select pg_advisory_xact_lock(1)":            true,
		"notify news":                                true,
		"set local app.tenant = '7'":                 false,
		"select set_config('app.tenant', '7', true)": false,
		"savepoint a":                                false,
		"do $$ begin perform 1; end $$":              false,
	} {
		for _, queued := range []bool{false, true} {
			before := pid()
			var err error
			if queued {
				err = s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { _, err := q.Exec(ctx, sql); return err })
			} else {
				err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { _, err := tx.Exec(ctx, sql); return err })
			}
			if after := pid(); err != nil || (after == before) != kept {
				t.Errorf("%s, queued %v: the connection is kept: %v; want %v; err = %v", sql, queued, after == before, kept, err)
			}
			f.Next++
		}
	}
}

// TestStatementsThatAFunctionDeallocatesAreDoneWithout, where no text tells.
func TestStatementsThatAFunctionDeallocatesAreDoneWithout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("create function forget() returns void language plpgsql as $$ begin execute 'deallocate ' || 'all'; end $$")
	for name, mode := range modes {
		s := r.openOn(r.pool(mode, func(c *pgxpool.Config) { c.MaxConns = 2 }))
		p := orders
		p.Group = name
		seed(t, s, p)
		f := claim(t, s, p, 5)
		tries := 0
		for done := 0; done < 6; {
			send := func(ctx context.Context, tx execer) error {
				if err := put(ctx, tx, name, fmt.Sprint(done)); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "select forget()")
				return err
			}
			var err error
			if done%2 == 0 {
				err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return send(ctx, tx) })
			} else {
				err = s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return send(ctx, q) })
			}
			if tries++; err != nil && !errors.Is(err, epoch.ErrTransient) || tries > 30 {
				t.Fatalf("%s: try %d: %v", name, tries, err)
			}
			if err == nil {
				done++
				f.Next++
			}
		}
		r.wantList(name, "0", "1", "2", "3", "4", "5")
	}
}
