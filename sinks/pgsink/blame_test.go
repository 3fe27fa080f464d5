package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// wantBlame fails the test unless err is no message's fault in the way of fault,
// or a message's where that is nil.
func wantBlame(t *testing.T, what string, err, fault error) {
	t.Helper()
	for _, f := range []error{epoch.ErrTransient, epoch.ErrUnhealthy} {
		if err == nil || errors.Is(err, f) != (f == fault) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: err = %v; want it to be %v", what, err, fault)
		}
	}
}

func (r *rig) bothForms(s *pgsink.Sink, f epoch.Fence, sql string, args ...any) map[string]error {
	return map[string]error{
		"handler": s.Commit(r.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}),
		"queue": s.Queued().Commit(r.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
			_, err := q.Exec(ctx, sql, args...)
			return err
		}),
	}
}

func TestWhatNoMessageIsAtFaultForIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	r.sql(`create function fail(code text) returns void language plpgsql as $$ begin raise exception using errcode = code; end $$;
		create table guarded (a int); alter table guarded enable row level security; create policy p on guarded using (a > 0);
		grant select, insert on guarded to ` + r.role)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for code, fault := range map[string]error{
		"40001": epoch.ErrTransient, // serialization_failure
		"40P01": epoch.ErrTransient, // deadlock_detected
		"53200": epoch.ErrTransient, // out_of_memory, and out of locks
		"55P03": epoch.ErrTransient, // lock_not_available
		// What a function of the user's raises is its message's, whatever code it takes.
		"53100": nil, // disk_full
		"25006": nil, // read_only_sql_transaction
		"58030": nil, // io_error
		"58P01": nil, // undefined_file
		"XX001": nil, // data_corrupted
		"XX002": nil, // index_corrupted
		"HV00N": nil, // fdw_unable_to_establish_connection
		"23505": nil,
		"22P02": nil,
		"42601": nil,
		"57014": nil, // a statement that takes too long is its message's fault
		"XX000": nil,
		"P0001": nil,
	} {
		for form, err := range r.bothForms(s, f, "select fail($1)", code) {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != code {
				t.Errorf("%s, SQLSTATE %s: err = %v", form, code, err)
			}
			wantBlame(t, form+", SQLSTATE "+code, err, fault)
		}
	}
	for sql, fault := range map[string]error{
		"insert into nowhere values (1)":           epoch.ErrUnhealthy,
		"insert into effects (lots) values (1)":    epoch.ErrUnhealthy,
		"select missing(1)":                        epoch.ErrUnhealthy,
		"select 1::nothing":                        epoch.ErrUnhealthy,
		"insert into elsewhere.effects values (1)": epoch.ErrUnhealthy,
		"delete from effects":                      epoch.ErrUnhealthy,
		"insert into stock values (1, 1) on conflict (left_over) do nothing": epoch.ErrUnhealthy,
		"set transaction read only; insert into effects (list) values ('x')": epoch.ErrUnhealthy,
		"execute nothing":                 epoch.ErrTransient,
		"insert into guarded values (-1)": nil,
		"select 1/0":                      nil,
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		})
		wantBlame(t, sql, err, fault)
		if whose := "the handler's statement needs"; errors.Is(err, epoch.ErrUnhealthy) && strings.HasPrefix(sql, "set ") == strings.Contains(err.Error(), whose) {
			t.Errorf("%s: %v; want it to say %q if something is missing", sql, err, whose)
		}
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

// TestAMissingRightOnTheFenceIsNoMessagesFault: neither at the claim, nor at the
// commit.
func TestAMissingRightOnTheFenceIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	r.sql("revoke execute on function epochfence.advance, epochfence.advance_one from " + r.role)
	for form, err := range r.bothForms(s, f, "select 1") {
		wantBlame(t, form, err, epoch.ErrUnhealthy)
	}
	r.sql("alter schema epochfence rename to elsewhere")
	_, err := epoch.FenceOf(t.Context(), s, orders)
	wantBlame(t, "Fence", err, epoch.ErrUnhealthy)
	_, err = s.Claim(t.Context(), f, epoch.NewClaim(lease(orders, 6)))
	wantBlame(t, "Claim", err, epoch.ErrUnhealthy)
	wantBlame(t, "Seed", s.Seed(t.Context(), []epoch.Start{{Origin: origin(orders)}}), epoch.ErrUnhealthy)
}

// TestAnErrorOfAnotherDatabaseIsTheHandlers, whatever its code, and whether or not
// this one has met with some before.
func TestAnErrorOfAnotherDatabaseIsTheHandlers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for _, code := range []string{"40P01", "55P03", "42P01", "53100", "57P01", "08006", "26000"} {
		foreign := fmt.Errorf("ask the warehouse: %w", &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code})
		for form, err := range map[string]error{
			"handler": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { return foreign }),
			"queue":   s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, *pgsink.Queue) error { return foreign }),
			"after a deadlock that was passed over": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				for _, sql := range []string{"savepoint a", "do $$ begin raise deadlock_detected; end $$", "rollback to savepoint a"} {
					_, _ = tx.Exec(ctx, sql)
				}
				return foreign
			}),
		} {
			if !errors.Is(err, foreign) {
				t.Errorf("%s: err = %v", form, err)
			}
			wantBlame(t, form+", "+code, err, nil)
		}
	}
}

// TestWhatAbortedATransactionIsBlamedForIt, also where the handler says something
// else.
func TestWhatAbortedATransactionIsBlamedForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	own := errors.New("could not reserve")
	for _, result := range []error{nil, own} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			for _, sql := range []string{"savepoint a", "select 1/0", "rollback to savepoint a", "do $$ begin raise deadlock_detected; end $$", "select 1"} {
				_, _ = tx.Exec(ctx, sql)
			}
			return result
		})
		if result != nil && !errors.Is(err, own) {
			t.Errorf("err = %v", err)
		}
		wantBlame(t, fmt.Sprint("returns ", result), err, epoch.ErrTransient)
	}
}

// TestADeploysChangeOfATableCostsNoMessage: what pgx has prepared does not fit any
// more, on each connection once.
func TestADeploysChangeOfATableCostsNoMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	commit := func() error {
		return s.Commit(t.Context(), advance(f, 0), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			rows, err := tx.Query(ctx, "select * from stock where item = $1", 1)
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			return err
		})
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	r.sql("alter table stock add column note text")
	if err := commit(); err != nil {
		wantBlame(t, "the first after it", err, epoch.ErrTransient)
	}
	if err := commit(); err != nil {
		t.Errorf("the second: %v", err)
	}
}
