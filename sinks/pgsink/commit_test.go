package pgsink_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestALostAcknowledgement is R5: whether the commit landed is not known to
// who sent it, and told by the fence to who claims again.
func TestALostAcknowledgement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		cut  cut
		next epoch.Offset
	}{{"landed", cutAfter, 2}, {"landed, and the advance was answered", cutWithin, 2}, {"not landed", cutBefore, 1}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			for _, queued := range []bool{false, true} {
				r := newRig(t)
				var w wire
				s := r.openOn(r.pool(w.one))
				seed(t, s, orders)
				f := claim(t, s, orders, 5)
				commit := func(value string, cut cut) error {
					proven(s, f)
					if queued {
						return s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
							defer w.arm(cut)
							return put(ctx, q, "list", value)
						})
					}
					return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
						defer w.arm(cut)
						return put(ctx, tx, "list", value)
					})
				}
				if err := commit("first", cutNothing); err != nil { // prepares all statements
					t.Fatal(err)
				}
				f.Next++
				want(t, commit("second", c.cut), epoch.ErrInDoubt)
				again := claim(t, s, orders, 5)
				if again.Next != c.next {
					t.Fatalf("queued %v: the fence is at offset %d, want %d", queued, again.Next, c.next)
				}
				r.wantList("list", []string{"first", "second"}[:c.next]...)
			}
		})
	}
}

// proven has the next transaction look no earlier than at its end, however long the
// machine takes until then.
func proven(s *pgsink.Sink, f epoch.Fence) { pgsink.Prove(s, f, time.Now().Add(time.Hour)) }

func TestACommitThatFollowsOneTakesOneRoundTripBesideItsHandlersAndAQueuedOneInAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var w wire
	s := r.openOn(r.pool(w.one))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for range 2 { // the first prepares
		w.sent()
		proven(s, f)
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("x", "1")); err != nil {
			t.Fatal(err)
		}
		f.Next++
	}
	if n := w.sent(); n != 2 {
		t.Errorf("a handler of one statement took %d round trips, want 2", n)
	}
	for range 2 {
		w.sent()
		pgsink.Forget(s)
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("x", "1")); err != nil {
			t.Fatal(err)
		}
		f.Next++
	}
	if n := w.sent(); n != 3 {
		t.Errorf("a handler of one statement, after an early look, took %d round trips, want 3", n)
	}
	for range 2 {
		w.sent()
		proven(s, f)
		if err := s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, queueing("x", "1")); err != nil {
			t.Fatal(err)
		}
		f.Next++
	}
	if n := w.sent(); n != 1 {
		t.Errorf("a queued statement took %d round trips, want 1", n)
	}
}

func TestARefusalOfTheCommitItselfIsDefinite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	r.sql(`create table parent (id int primary key);
		create table child (id int references parent deferrable initially deferred);
		grant select, insert on parent, child to ` + r.role)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	const orphan = "insert into child values (1)"
	check := func(err error) {
		t.Helper()
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23503" {
			t.Fatalf("err = %v; want the foreign key", err)
		}
		for _, other := range []error{epoch.ErrInDoubt, epoch.ErrTxEndedByHandler, epoch.ErrStale} {
			if errors.Is(err, other) {
				t.Errorf("err = %v, which is %v", err, other)
			}
		}
		if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
			t.Fatalf("the fence is %+v, %v; want %+v", again, err, f)
		}
	}
	check(s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, err := tx.Exec(ctx, orphan)
		return err
	}))
	check(s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
		_, err := q.Exec(ctx, orphan)
		return err
	}))
}

func TestASerializationFailureIsDefinite(t *testing.T) {
	t.Parallel()
	for _, isolation := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		r := newRig(t)
		s := r.open(func(o *pgsink.Options) { o.Isolation = isolation })
		seed(t, s, orders)
		f := claim(t, s, orders, 5)
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			if err := tx.QueryRow(ctx, "select left_over from stock where item = 1").Scan(new(int)); err != nil {
				return err
			}
			r.sql("update stock set left_over = left_over - 1 where item = 1")
			_, err := tx.Exec(ctx, "update stock set left_over = left_over - 1 where item = 1")
			return err
		})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "40001" || errors.Is(err, epoch.ErrInDoubt) {
			t.Fatalf("%s: err = %v", isolation, err)
		}
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("x", "1")); err != nil {
			t.Fatalf("%s: the next try: %v", isolation, err)
		}
	}
}

func TestEveryTransactionIsBoundedOnTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	settings := func(ctx context.Context, o epoch.TxOptions) (statement, idle, lock string) {
		t.Helper()
		err := s.Commit(ctx, advance(f, 0), o, func(ctx context.Context, tx pgsink.Tx) error {
			return tx.QueryRow(ctx, `select current_setting('statement_timeout'),
				current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')`).Scan(&statement, &idle, &lock)
		})
		if err != nil {
			t.Fatal(err)
		}
		return statement, idle, lock
	}
	if a, b, c := settings(t.Context(), epoch.TxOptions{}); a != "30s" || b != "30s" || c != "10s" {
		t.Errorf("without a deadline the bounds are %s, %s and %s", a, b, c)
	}
	const most = 10 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	began := time.Now()
	a, b, c := settings(ctx, epoch.TxOptions{})
	least := most - time.Since(began)
	for _, bound := range []string{a, b} {
		if d, err := time.ParseDuration(bound); err != nil || d < least+time.Second-time.Millisecond || d > most+time.Second {
			t.Errorf("with 10 s left the bound is %s, want a second more", bound)
		}
	}
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if a, b, _ := settings(long, epoch.TxOptions{}); a == "30s" || b == "30s" {
		t.Errorf("with an hour left the bounds are %s and %s", a, b)
	}
	if d, err := time.ParseDuration(c); err != nil || d < least*8/10 || d > most*9/10 {
		t.Errorf("with 10 s left a wait for a lock is bounded by %s, want less than is left", c)
	}
	if _, _, c := settings(t.Context(), epoch.TxOptions{LockWait: 40 * time.Millisecond}); c != "40ms" {
		t.Errorf("where others wait for the transaction, a wait for a lock is bounded by %s", c)
	}
	if _, _, c := settings(t.Context(), epoch.TxOptions{LockWait: time.Hour}); c != "10s" {
		t.Errorf("a caller that asks for an hour gets %s; the option says 10 s", c)
	}
	s = r.open(func(o *pgsink.Options) { o.LockTimeout, o.StatementTimeout = 24*time.Hour, 24*time.Hour })
	for _, wait := range []time.Duration{time.Millisecond, 999 * time.Millisecond, time.Second, 1001 * time.Millisecond, 59 * time.Second,
		time.Minute, 61 * time.Second, 90 * time.Minute, time.Hour, 20 * time.Hour} {
		// The sink knows how the server shows it: see sessionState.
		if a, _, c := settings(t.Context(), epoch.TxOptions{LockWait: wait}); a != pgsink.Setting(24*time.Hour) || c != pgsink.Setting(wait) {
			t.Errorf("the server shows 24 h as %s, %v as %s; the sink expects %s and %s", a, wait, c, pgsink.Setting(24*time.Hour), pgsink.Setting(wait))
		}
	}
	// And nothing of it stays with the connection, or a pooler's other clients.
	var left string
	pool := r.pool()
	one := r.openOn(pool)
	if err := one.Commit(t.Context(), advance(f, 0), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := pool.QueryRow(t.Context(), "select current_setting('statement_timeout') || current_setting('lock_timeout') || coalesce(current_setting('epochfence.transaction', true), '')").Scan(&left)
	if err != nil || left != "00" {
		t.Errorf("after it: %q, %v", left, err)
	}
}

func TestACommitWithoutAFenceIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for _, as := range [][]epoch.Advance{nil, append(advance(f, 1), advance(f, 1)...)} {
		called := false
		err := s.Commit(t.Context(), as, epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { called = true; return nil })
		if err == nil || called {
			t.Errorf("%d advances: err = %v, called %v", len(as), err, called)
		}
	}
}
