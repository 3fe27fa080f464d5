package pgsink_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestAMessageThatEndsItsConnectionIsDeadLettered: each of its transactions loses its
// connection, whatever its handler makes of that. The others of its partition and of the
// other one are applied.
func TestAMessageThatEndsItsConnectionIsDeadLettered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`
		create function die() returns trigger language plpgsql as
			'begin if new.value = ''late'' then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end';
		create constraint trigger dies after insert on effects deferrable initially deferred for each row execute function die();`)
	s := r.open()
	const suicide = "select pg_terminate_backend(pg_backend_pid())"
	each := func(kill func(ctx context.Context, tx pgsink.Tx)) func(ctx context.Context, log *memsource.Log) error {
		return func(ctx context.Context, log *memsource.Log) error {
			return consumer.Run(log.UntilApplied(ctx), log.Member("a"), s, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
				if string(m.Value) == "bad" {
					kill(ctx, tx)
					return nil
				}
				return put(ctx, tx, log.Name(), string(m.Value))
			}).OnFailure(s.DeadLetter), blamed)
		}
	}
	for name, run := range map[string]func(ctx context.Context, log *memsource.Log) error{
		"terminated": each(func(ctx context.Context, tx pgsink.Tx) { _, _ = tx.Exec(ctx, suicide) }),
		"own-timeout": each(func(ctx context.Context, tx pgsink.Tx) {
			timesOut(ctx, tx)
		}),
		"deferred": each(func(ctx context.Context, tx pgsink.Tx) { _ = put(ctx, tx, "x", "late") }),
		"queued": func(ctx context.Context, log *memsource.Log) error {
			q := s.Queued()
			return consumer.Run(log.UntilApplied(ctx), log.Member("a"), q, consumer.Each(func(ctx context.Context, tx *pgsink.Queue, m consumer.Message, _ epoch.Epoch) error {
				if string(m.Value) == "bad" {
					_, err := tx.Exec(ctx, suicide)
					return err
				}
				return put(ctx, tx, log.Name(), string(m.Value))
			}).OnFailure(q.DeadLetter), blamed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := memsource.New(name, 2)
			log.Append(0, "1", "2", "3", "bad", "4", "5")
			log.Append(1, "6")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := run(ctx, log); err != nil || ctx.Err() != nil {
				t.Fatalf("%v, %v", err, ctx.Err())
			}
			var offsets, effects string
			if err := r.reader.QueryRow(ctx, `select string_agg(message_offset::text, ' '), (select string_agg(value, ' ' order by value) from effects where list = $1)
				from epochfence.fence_ledger where kind = 'dead-letter' and topic = $1`, name).Scan(&offsets, &effects); err != nil {
				t.Fatal(err)
			}
			if offsets != "3" || effects != "1 2 3 4 5 6" {
				t.Errorf("dead letters at %s, effects %s", offsets, effects)
			}
		})
	}
}

var blamed = consumer.Options{MaxAttempts: 2, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond}

// timesOut gives a statement a short time, which closes the connection once the statement is sent. On a machine
// that stalls the time may be over before that, and then it does so again.
func timesOut(ctx context.Context, tx pgsink.Tx) {
	for lost := false; !lost; {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = tx.Exec(short, "select pg_sleep(20)")
		cancel()
		_, err := tx.Exec(ctx, "select 1")
		lost = err != nil
	}
}

// TestCallsBehindALostConnectionAreNotMade: the one at hand is the one to look at.
func TestCallsBehindALostConnectionAreNotMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, _ = tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
		return nil
	}, func(context.Context, pgsink.Tx) error {
		t.Error("called")
		return nil
	})
	want(t, err, epoch.ErrInDoubt)
	if !strings.Contains(err.Error(), "57P01") {
		t.Errorf("err = %v, want what ended the connection", err)
	}
}

// TestAHandlersOwnTimeoutIsNotInDoubt: it has closed the connection, and nothing was sent
// that commits.
func TestAHandlersOwnTimeoutIsNotInDoubt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := put(ctx, tx, "x", "1"); err != nil {
			return err
		}
		timesOut(ctx, tx)
		return nil
	})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrTransient) {
		t.Errorf("err = %v", err)
	}
}

// TestMalformedInputIsTheMessages: L2. The server refuses it with a code of the class that
// means a broken connection.
func TestMalformedInputIsTheMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		s := r.openOn(r.pool(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
		seed(t, s, orders)
		for name, c := range map[string]struct {
			sql  string
			args []any
		}{
			"a NUL byte in an argument":           {"insert into effects (list, value) values ('x', $1::text)", []any{"a\x00b"}},
			"a NUL byte in a text":                {"insert into effects (list, value) values ('x', 'a\x00b')", nil},
			"a NUL byte in a text with arguments": {"insert into effects (list, value) values ('x\x00', $1::text)", []any{"a"}},
			"what is no UTF-8 in an argument":     {"insert into effects (list, value) values ('x', $1::text)", []any{"a\xff"}},
			"too few arguments":                   {"insert into effects (list, value) values ($1::text, $2::text)", []any{"a"}},
			"too many arguments":                  {"insert into effects (list, value) values ('x', $1::text)", []any{"a", "b"}},
		} {
			f := claim(t, s, orders, 5)
			for form, err := range map[string]error{
				"statement": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					if err := put(ctx, tx, "x", "1"); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, c.sql, c.args...)
					return err
				}),
				"queued": s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					_, err := q.Exec(ctx, c.sql, c.args...)
					return err
				}),
			} {
				if err == nil || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
					t.Errorf("%v, %s, %s: err = %v; want one that is the message's", mode, name, form, err)
				}
			}
		}
	}
	r.wantList("x")
}

// TestWhatAFunctionOfTheUsersRaisesIsTheMessages: whatever code it takes, unless it is one
// that asks to be tried again.
func TestWhatAFunctionOfTheUsersRaisesIsTheMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`create function refuse(code text) returns int language plpgsql as 'begin raise exception using errcode = code, message = ''refused''; end'`)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for code, as := range map[string]error{
		"42501": nil, "42P01": nil, "3F000": nil, "42883": nil, "42703": nil, "25006": nil, "58030": nil, "53100": nil, "08006": nil, "08P01": nil,
		"40001": epoch.ErrTransient, "55P03": epoch.ErrTransient,
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "select refuse($1)", code)
			return err
		})
		if err == nil || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) != (as != nil) {
			t.Errorf("%s: err = %v; want %v", code, err, as)
		}
	}
}

// TestAConnectionOnWhichSomethingWasNotFoundIsNotUsedAgain: a setting that somebody has
// left there may be why, such as search_path or role.
func TestAConnectionOnWhichSomethingWasNotFoundIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.MaxConns = 1 }))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for code, sql := range map[string]string{
		"42P01": "insert into nowhere values (1)",
		"42883": "select nowhere()",
		"3F000": "create table nowhere.nothing (n int)",
		"42501": "delete from epochfence.fence",
		"23514": "", // a message's own: the connection is kept
	} {
		var before, after int
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			if err := tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&before); err != nil {
				return err
			}
			if sql == "" {
				return put(ctx, tx, "x", "refused")
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != code {
			t.Fatalf("%s: err = %v", code, err)
		}
		err = s.Commit(t.Context(), advance(f, 0), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			return tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&after)
		})
		if err != nil || (before == after) != (sql == "") {
			t.Errorf("%s: the connection was %d and is %d, %v", code, before, after, err)
		}
	}
}
