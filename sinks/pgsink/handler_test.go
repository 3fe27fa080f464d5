package pgsink_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestAHandlerThatLeavesTheTransactionIsFoundOut: whatever it does then, and
// whether or not it then fails.
func TestAHandlerThatLeavesTheTransactionIsFoundOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	own := errors.New("its own error")
	for _, c := range []struct {
		sql    string
		result error
	}{
		{"commit", nil},
		{"commit", own},
		{"rollback", nil},
		{"rollback", own},
		{"commit; begin", nil},
		{"commit; begin", own},
		{"commit and chain", nil},
		{"rollback; begin", nil},
		{"rollback; begin", own},
		{"commit; begin; select 1/0", nil},
		{"commit; begin; select 1/0", own},
		{"commit; select 1/0", nil},
		{"end; begin isolation level serializable", nil},
		{"commit; begin; select set_config('epochfence.transaction', '1', true)", nil},
	} {
		for _, hidden := range []bool{false, true} {
			apply := func(ctx context.Context, tx pgsink.Tx) error {
				if err := put(ctx, tx, "escaped", "1"); err != nil {
					return err
				}
				if !hidden {
					_, _ = tx.Exec(ctx, c.sql)
					return c.result
				}
				for _, sql := range smuggled(c.sql) {
					_, _ = tx.Exec(ctx, sql)
				}
				return c.result
			}
			for form, commit := range map[string]func(f epoch.Fence) error{
				"advance": func(f epoch.Fence) error { return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply) },
				"hold":    func(f epoch.Fence) error { return s.CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, apply) },
			} {
				r.sql("truncate effects")
				f := claim(t, s, orders, 5)
				err := commit(f)
				escaped, lerr := r.list(t.Context(), "escaped")
				if lerr != nil {
					t.Fatal(lerr)
				}
				refused, left := errors.Is(err, epoch.ErrTxControl), errors.Is(err, epoch.ErrTxEndedByHandler)
				if err == nil || refused == hidden || left != (len(escaped) > 0) || c.result != nil && !errors.Is(err, c.result) {
					t.Errorf("%s, hidden %v, in a transaction of %s, and returns %v: err = %v; %d effects", c.sql, hidden, form, c.result, err, len(escaped))
				}
				if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again.Next != f.Next {
					t.Errorf("%s: the fence moved to %d, %v", c.sql, again.Next, err)
				}
			}
		}
	}
	for _, statements := range [][]string{
		{"commit"},
		{"commit", "begin"},
		{"rollback"},
		{"commit", "select 1/0"},
		{"commit", "begin", "select 1/0"},
	} {
		apply := func(ctx context.Context, q *pgsink.Queue) error {
			if err := put(ctx, q, "escaped", "1"); err != nil {
				return err
			}
			for _, sql := range statements {
				if _, err := q.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}
		f := claim(t, s, orders, 5)
		if err := s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply); !errors.Is(err, epoch.ErrTxControl) {
			t.Errorf("queued %q: err = %v", statements, err)
		}
		f = claim(t, s, orders, 5)
		if err := s.Queued().CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, apply); !errors.Is(err, epoch.ErrTxControl) {
			t.Errorf("queued %q in a transaction that holds the claim: err = %v", statements, err)
		}
	}
}

// smuggled are texts by which sql reaches the server although the sink sends no such
// statement: where backslashes escape, the literal ends before it, and elsewhere behind it.
// No program does that. The checks behind the first one must hold all the same.
func smuggled(sql string) []string {
	return []string{setEscapes, hidden(sql)}
}

const setEscapes = "select set_config('standard_conforming_strings', 'off', false)"

func hidden(sql string) string { return `select '\'' ; ` + sql + " --'" }

func TestSavepointsAreTheHandlersOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		for _, sql := range []string{
			"insert into effects (list, value) values ('kept', '1')",
			"savepoint before",
			"insert into effects (list, value) values ('kept', 'refused')", // by the constraint
			"rollback to savepoint before",
			"insert into effects (list, value) values ('kept', '2')",
		} {
			if _, err := tx.Exec(ctx, sql); err != nil && !strings.Contains(sql, "refused") {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.wantList("kept", "1", "2")
}

func TestAHandlerThatHidesAnErrorIsToldWhichOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, apply := range map[string]func(context.Context, pgsink.Tx) error{
		"Exec": func(ctx context.Context, tx pgsink.Tx) error { _ = put(ctx, tx, "x", "refused"); return nil },
		"QueryRow": func(ctx context.Context, tx pgsink.Tx) error {
			_ = tx.QueryRow(ctx, "insert into effects (value) values ('refused') returning n").Scan(new(int))
			return nil
		},
		"Query": func(ctx context.Context, tx pgsink.Tx) error {
			rows, _ := tx.Query(ctx, "insert into effects (value) values ('refused') returning n")
			rows.Close()
			return nil
		},
		"SendBatch": func(ctx context.Context, tx pgsink.Tx) error {
			b := &pgx.Batch{}
			b.Queue("insert into effects (value) values ('refused')")
			_ = tx.SendBatch(ctx, b).Close()
			return nil
		},
		"CopyFrom": func(ctx context.Context, tx pgsink.Tx) error {
			_, _ = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"value"}, pgx.CopyFromRows([][]any{{"refused"}}))
			return nil
		},
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23514" || errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "returned nil although") {
			t.Errorf("%s: err = %v; want the check that was violated", name, err)
		}
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

func TestResultsLeftOpenAreAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	const many = "select generate_series(1, 100000)"
	for name, apply := range map[string]func(context.Context, pgsink.Tx) error{
		"rows": func(ctx context.Context, tx pgsink.Tx) error { _, err := tx.Query(ctx, many); return err },
		"half-read rows": func(ctx context.Context, tx pgsink.Tx) error {
			rows, err := tx.Query(ctx, many)
			rows.Next()
			return err
		},
		"a row": func(ctx context.Context, tx pgsink.Tx) error { tx.QueryRow(ctx, "select 1"); return nil },
		"a batch": func(ctx context.Context, tx pgsink.Tx) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			tx.SendBatch(ctx, b)
			return nil
		},
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply)
		if err == nil || errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "left a result open") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("x", "1")); err != nil {
		t.Errorf("and then: %v", err)
	}
}

func TestNothingOfATransactionWorksAfterItsHandlerReturned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	ctx := t.Context()
	var (
		kept pgsink.Tx
		rows pgx.Rows
		row  pgx.Row
	)
	_ = s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) (err error) {
		kept = tx
		rows, err = tx.Query(ctx, "select 1")
		return err
	})
	if rows.Next() || !errors.Is(rows.Err(), pgsink.ErrTxClosed) {
		t.Errorf("rows: err = %v", rows.Err())
	}
	rows.Close()
	_ = s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		row = tx.QueryRow(ctx, "select 1")
		return nil
	})
	var errs []error
	errs = append(errs, row.Scan(new(int)))
	_, err := kept.Exec(ctx, "select 1")
	errs = append(errs, err)
	_, err = kept.Query(ctx, "select 1")
	errs = append(errs, err, kept.QueryRow(ctx, "select 1").Scan(new(int)))
	b := &pgx.Batch{}
	b.Queue("select 1")
	errs = append(errs, kept.SendBatch(ctx, b).Close())
	_, err = kept.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"value"}, pgx.CopyFromRows(nil))
	errs = append(errs, err)
	var q *pgsink.Queue
	if err := s.Queued().Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(_ context.Context, queue *pgsink.Queue) error { q = queue; return nil }); err != nil {
		t.Fatal(err)
	}
	_, err = q.Exec(ctx, "select 1")
	errs = append(errs, err)
	for i, err := range errs {
		if !errors.Is(err, pgsink.ErrTxClosed) {
			t.Errorf("use %d: err = %v", i, err)
		}
	}
}

func TestAGoroutineThatOutlivesItsHandlerCommitsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	leaked := make(chan error, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(_ context.Context, tx pgsink.Tx) error {
		go func() {
			_, err := tx.Exec(context.Background(), "select pg_sleep(300) /* leaked */")
			leaked <- err
		}()
		r.eventually("the goroutine's statement runs", "select exists (select from pg_stat_activity where datname = current_database() and query like '%leaked%' and state = 'active' and pid <> pg_backend_pid())")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "goroutine") || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("err = %v", err)
	}
	if err := <-leaked; err == nil {
		t.Error("the goroutine's statement succeeded")
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

func TestATxIsNothingButATx(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if _, is := tx.(interface{ Commit(context.Context) error }); is {
			t.Error("it has a Commit")
		}
		if _, is := tx.(interface{ Rollback(context.Context) error }); is {
			t.Error("it has a Rollback")
		}
		if _, is := tx.(interface{ Conn() *pgx.Conn }); is {
			t.Error("it has a Conn")
		}
		if _, is := tx.(interface {
			Begin(context.Context) (pgx.Tx, error)
		}); is {
			t.Error("it has a Begin")
		}
		rows, err := tx.Query(ctx, "select 1")
		if err != nil {
			return err
		}
		if rows.Conn() != nil {
			t.Error("its rows have a Conn")
		}
		rows.Close()
		b := &pgx.Batch{}
		b.Queue("select 1")
		results := tx.SendBatch(ctx, b)
		if results.Tx() != nil {
			t.Error("its batches have a Tx")
		}
		return results.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAConnectionThatTheHandlerBrokeIsTheHandlersFault and no lost connection:
// claiming again would repeat it for ever.
func TestAConnectionThatTheHandlerBrokeIsTheHandlersFault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, apply := range map[string]func(context.Context, pgsink.Tx) error{
		"a timeout of its own": func(ctx context.Context, tx pgsink.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "select pg_sleep(300)")
			return err
		},
		"an argument of no type": func(ctx context.Context, tx pgsink.Tx) error {
			b := &pgx.Batch{}
			b.Queue("select $1::text", make(chan int))
			return tx.SendBatch(ctx, b).Close()
		},
	} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply)
		if err == nil || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

// TestTheServerKnowsATransactionThatTheHandlerHasBegun, should one ever come as far as the
// check at the end.
func TestTheServerKnowsATransactionThatTheHandlerHasBegun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	p := f.Partition
	conn := r.admin
	var xid int64
	must(t, conn.QueryRow(t.Context(), "select pg_current_xact_id()::text::bigint").Scan(&xid)) // of a transaction that is over
	for name, c := range map[string]struct {
		sql  string
		args []any
	}{
		"advance_one": {"select epochfence.advance_one($1::text, $2::text, $3::int, $4::text::uuid, $5, $6, -1, $7, 0, 'nonce', false)",
			[]any{p.Group, p.Topic, p.Number, f.Claim.String(), int64(f.Next), int64(f.Next) + 1, xid}},
		"advance": {"select epochfence.advance($1::text[], $2::text[], $3::int[], $4::text[]::uuid[], $5::bigint[], $6::bigint[], '{-1}', $7, 0, 'nonce', false)",
			[]any{[]string{p.Group}, []string{p.Topic}, []int32{p.Number}, []string{f.Claim.String()}, []int64{int64(f.Next)}, []int64{int64(f.Next) + 1}, xid}},
		"hold": {"select epochfence.hold($1::text, $2::text, $3::int, $4::text::uuid, $5, 0, 'nonce')",
			[]any{p.Group, p.Topic, p.Number, f.Claim.String(), xid}},
	} {
		var pg *pgconn.PgError
		if _, err := conn.Exec(t.Context(), c.sql, c.args...); !errors.As(err, &pg) || pg.Code != "XF004" {
			t.Errorf("%s in another transaction: err = %v; want XF004", name, err)
		}
	}
	if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now.Next != f.Next {
		t.Errorf("the fence moved to %d, %v", now.Next, err)
	}
}
