package pgsink_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// takeoverBound is what a takeover may take where the claim may end the frozen
// transaction; it takes some milliseconds on an idle machine.
const takeoverBound = 20 * time.Second

const takeStock = "update stock set left_over = left_over - 1 where item = 1"

func takingStock(ctx context.Context, tx pgsink.Tx) error {
	_, err := tx.Exec(ctx, takeStock)
	return err
}

// takesOver claims and commits a transaction that needs the row which the
// frozen owner has locked, and returns how long that took.
func takesOver(t *testing.T, s *pgsink.Sink, p epoch.Partition, number int64) (epoch.Fence, time.Duration) {
	t.Helper()
	began := time.Now()
	f := claim(t, s, p, number)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, takingStock); err != nil {
		t.Fatal(err)
	}
	return f, time.Since(began)
}

func TestAnOwnerFrozenInItsHandlerDelaysTheNextByMilliseconds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open()
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	frozen := func(ctx context.Context, tx pgsink.Tx) error {
		if err := takingStock(ctx, tx); err != nil {
			return err
		}
		fb, took := takesOver(t, b, orders, 6)
		t.Logf("the next owner's first commit was done after %v", took)
		if took > takeoverBound || fb.Next != 0 {
			t.Errorf("it went on at offset %d after %v", fb.Next, took)
		}
		return nil
	}
	want(t, a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, frozen), epoch.ErrInDoubt)
	want(t, a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, takingStock), epoch.ErrStale)
	wantStock(r, 99)
}

func wantStock(r *rig, n int) {
	r.Helper()
	var left int
	if err := r.admin.QueryRow(r.Context(), "select left_over from stock where item = 1").Scan(&left); err != nil || left != n {
		r.Fatalf("%d left in stock, %v; want %d", left, err, n)
	}
}

// enterSQL and advanceSQL are what a sink sends, for a transaction that stops
// where none of its calls would.
const (
	enterSQL = `select set_config('epochfence.transaction', pg_current_xact_id()::text, true),
		set_config('idle_in_transaction_session_timeout', $1::int::text, true), pg_advisory_xact_lock_shared($2::bigint)`
	advanceSQL = `select epochfence.advance($1::text[], $2::text[], $3::int[], $4::text[]::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], pg_current_xact_id()::text::bigint, 0, 'nonce', false)`
)

// freeze leaves a transaction open that holds the stock and, after its
// advance, the fence.
func freeze(t *testing.T, url string, f epoch.Fence, idle time.Duration) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	groups, topics, numbers := []string{f.Partition.Group}, []string{f.Partition.Topic}, []int32{f.Partition.Number}
	claims, from := []string{f.Claim.String()}, []int64{int64(f.Next)}
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"begin", nil},
		{enterSQL, []any{idle.Milliseconds(), pgsink.ClaimLock(f.Claim)}},
		{takeStock, nil},
		{advanceSQL, []any{groups, topics, numbers, claims, from, []int64{int64(f.Next) + 1}, []int64{-1}}},
	} {
		if _, err := conn.Exec(t.Context(), s.sql, s.args...); err != nil {
			t.Fatalf("%s: %v", s.sql, err)
		}
	}
	return conn
}

func TestAnOwnerFrozenBetweenAdvanceAndCommitDelaysTheNextByMilliseconds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open()
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	conn := freeze(t, r.appURL, fa, 30*time.Second)
	fb, took := takesOver(t, b, orders, 6)
	t.Logf("the next owner's first commit was done after %v", took)
	if took > takeoverBound || fb.Next != 0 {
		t.Errorf("it went on at offset %d after %v", fb.Next, took)
	}
	if _, err := conn.Exec(t.Context(), "commit"); err == nil {
		t.Error("the frozen owner committed")
	}
	wantStock(r, 99)
}

func TestAnOwnerWhoseStatementRunsIsEndedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open()
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	outcome := make(chan error, 1)
	go func() {
		outcome <- a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, takeStock+" and pg_sleep(300) is not null /* slow */")
			return err
		})
	}()
	r.eventually("the slow statement runs", "select exists (select from pg_stat_activity where datname = current_database() and query like '%slow%' and state = 'active' and pid <> pg_backend_pid())")
	_, took := takesOver(t, b, orders, 6)
	t.Logf("the next owner's first commit was done after %v", took)
	want(t, <-outcome, epoch.ErrInDoubt)
}

func TestAQueuedTransactionOfAReplacedClaimIsEndedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open()
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	outcome := make(chan error, 1)
	go func() {
		outcome <- a.Queued().Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
			_, err := q.Exec(ctx, takeStock+" and pg_sleep(300) is not null /* slow */")
			return err
		})
	}()
	r.eventually("the slow statement runs", "select exists (select from pg_stat_activity where datname = current_database() and query like '%slow%' and state = 'active' and pid <> pg_backend_pid())")
	_, took := takesOver(t, b, orders, 6)
	t.Logf("the next owner's first commit was done after %v", took)
	want(t, <-outcome, epoch.ErrInDoubt)
}

// TestWithoutTheRightToEndItTheIdleTimeoutBoundsTheDelay is what the eviction is
// for: the same histories, with an owner that uses another role.
func TestWithoutTheRightToEndItTheIdleTimeoutBoundsTheDelay(t *testing.T) {
	t.Parallel()
	const idle = 3 * time.Second // the claim must come before it, on a machine that stalls
	r := newRig(t)
	other, otherURL := r.db.Role(t)
	if err := pgsink.Grant(t.Context(), r.admin, other, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	r.sql("grant select, insert, update on effects, stock to " + other)
	var log lockedBuffer
	b := r.open(func(o *pgsink.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	seed(t, b, orders)
	for i, where := range []string{"in its handler", "between advance and commit"} {
		fa := claim(t, b, orders, int64(10*i+5))
		if i == 0 {
			a := r.openOn(newPool(t, otherURL), func(o *pgsink.Options) { o.IdleTimeout = idle })
			want(t, a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				began := time.Now()
				if err := takingStock(ctx, tx); err != nil {
					return err
				}
				takesOver(t, b, orders, 6)
				boundedByIdle(t, where, time.Since(began), idle)
				return nil
			}), epoch.ErrInDoubt)
			continue
		}
		began := time.Now()
		freeze(t, otherURL, fa, idle)
		takesOver(t, b, orders, 16)
		boundedByIdle(t, where, time.Since(began), idle)
	}
	if n := strings.Count(log.String(), "cannot end the open transaction"); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, log.String())
	}
}

func boundedByIdle(t *testing.T, where string, took, idle time.Duration) {
	t.Helper()
	t.Logf("frozen %s: the next owner's first commit was done after %v", where, took)
	if took < idle/2 || took > idle+takeoverBound {
		t.Errorf("frozen %s: it took %v; want about the idle timeout, %v", where, took, idle)
	}
}

func TestAClaimThatCannotHaveTheFenceSaysSoInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, otherURL := r.db.Role(t)
	if err := pgsink.Grant(t.Context(), r.admin, other, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	r.sql("grant update, select on stock to " + other)
	s := r.open(func(o *pgsink.Options) { o.ClaimTimeout = 300 * time.Millisecond })
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	freeze(t, otherURL, f, 30*time.Second)
	began := time.Now()
	_, err := tryClaim(t.Context(), s, orders, 6)
	if err == nil || !strings.Contains(err.Error(), "another transaction holds the fence") {
		t.Errorf("err = %v", err)
	}
	if took := time.Since(began); took > takeoverBound {
		t.Errorf("said after %v", took)
	}
}

// TestAClaimEndsNoTransactionButThoseOfTheClaimItReplaces: neither those of
// other partitions nor those of a claim it has not seen.
func TestAClaimEndsNoTransactionButThoseOfTheClaimItReplaces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	other := epoch.Partition{Group: orders.Group, Topic: orders.Topic, Number: 4}
	seed(t, s, orders, other)
	f, g := claim(t, s, orders, 5), claim(t, s, other, 5)
	err := s.Commit(t.Context(), advance(g, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := put(ctx, tx, "other", "1"); err != nil {
			return err
		}
		f = claim(t, s, orders, 6)
		return nil
	})
	if err != nil {
		t.Errorf("a transaction of another partition: %v", err)
	}
	late := f // what a slow claimant has read
	f = claim(t, s, orders, 7)
	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if _, err := s.Claim(ctx, late, epoch.NewClaim(lease(orders, 6))); !errors.Is(err, epoch.ErrStale) {
			t.Errorf("the late claimant: err = %v", err)
		}
		return put(ctx, tx, "orders", "1")
	})
	if err != nil {
		t.Errorf("a transaction of a later claim: %v", err)
	}
}

// TestAStaleTransactionIsRefusedBeforeItsHandlerRuns: the early look, which spares
// a zombie the work.
func TestAStaleTransactionIsRefusedBeforeItsHandlerRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	fa := claim(t, s, orders, 5)
	fb := claim(t, s, orders, 6)
	called := false
	err := s.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { called = true; return nil })
	want(t, err, epoch.ErrStale)
	var stale *epoch.StaleError
	if !errors.As(err, &stale) || stale.Held != fb || called {
		t.Errorf("err = %v, called %v", err, called)
	}
}

// TestTheEarlyLookIsLeftOutOnlyAfterAProof: a claim or an advance of this process, of
// that claim and up to that offset, not long ago, and once.
func TestTheEarlyLookIsLeftOutOnlyAfterAProof(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.stranger()
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	if err := a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, putting("list", "first")); err != nil {
		t.Fatal(err)
	}
	fa.Next++
	claim(t, b, orders, 6)
	for _, c := range []struct {
		name   string
		before func()
		called bool
	}{
		{"after the advance", func() { proven(a, fa) }, true},
		{"after one that was refused", func() {}, false},
		{"long after the advance", func() { pgsink.Prove(a, fa, time.Now().Add(-time.Second)) }, false},
		{"after an advance elsewhere", func() {
			at := fa
			at.Next++
			pgsink.Prove(a, at, time.Now())
		}, false},
		{"after a claim of somebody else's", func() {
			of := fa
			of.Claim = epoch.NewClaim(lease(orders, 7)).ID
			pgsink.Prove(a, of, time.Now())
		}, false},
	} {
		c.before()
		called := false
		want(t, a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { called = true; return nil }), epoch.ErrStale)
		if called != c.called {
			t.Errorf("%s: the handler was called: %v", c.name, called)
		}
	}
	r.wantList("list", "first")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestATransactionThatBeganWhileTheClaimWaitedIsEndedToo: the eviction after the
// swap.
func TestATransactionThatBeganWhileTheClaimWaitedIsEndedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open(func(o *pgsink.Options) { o.ClaimTimeout = 30 * time.Second })
	seed(t, a, orders)
	fa := claim(t, a, orders, 5)
	holder := r.db.Superuser(t)
	if _, err := holder.Exec(t.Context(), "begin; select from epochfence.fence for update"); err != nil {
		t.Fatal(err)
	}
	type claimed struct {
		f   epoch.Fence
		err error
	}
	swapped := make(chan claimed, 1)
	go func() {
		f, err := tryClaim(t.Context(), b, orders, 6)
		swapped <- claimed{f, err}
	}()
	r.eventually("the claim waits for the fence", waiting, "%claim%")
	want(t, a.Commit(t.Context(), advance(fa, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := takingStock(ctx, tx); err != nil {
			return err
		}
		if _, err := holder.Exec(ctx, "commit"); err != nil {
			return err
		}
		got := <-swapped
		if got.err != nil {
			return got.err
		}
		began := time.Now()
		if err := b.Commit(ctx, advance(got.f, 1), epoch.TxOptions{}, takingStock); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > takeoverBound {
			t.Errorf("the next owner's first commit took %v", took)
		}
		return nil
	}), epoch.ErrInDoubt)
}

// An evict terminates the backend that holds a claim's lock. By then the pool may have given the connection
// to whoever reads a fence, or claims, and so again on the next connection.
func TestACallWhoseBackendsAreTerminatedInAnothersPlacePasses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, call := range map[string]func() error{
		"Fence": func() error { _, err := epoch.FenceOf(t.Context(), s, orders); return err },
		"Claim": func() error {
			_, err := s.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: origin(orders), Generation: 6, Owner: "b"}))
			return err
		},
	} {
		tx, err := r.admin.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "lock table epochfence.fence in access exclusive mode")
		}
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { answer <- call() }()
		tick := time.NewTicker(5 * time.Millisecond)
		for waits := true; waits; {
			select {
			case err = <-answer:
				waits = false
			case <-tick.C:
				if _, err := r.reader.Exec(t.Context(), "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = $1 and wait_event_type = 'Lock'", r.role); err != nil {
					t.Fatal(err)
				}
			}
		}
		tick.Stop()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantBlame(t, name, err, epoch.ErrTransient)
	}
}
