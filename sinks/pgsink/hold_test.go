package pgsink_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func holdOf(f epoch.Fence) epoch.Hold { return epoch.Hold{Partition: f.Partition, Claim: f.Claim} }

// The ways to run handlers that queue statements, or do not.
var heldForms = map[string]func(ctx context.Context, s *pgsink.Sink, f epoch.Fence, apply func(context.Context, execer) error) error{
	"handler": func(ctx context.Context, s *pgsink.Sink, f epoch.Fence, apply func(context.Context, execer) error) error {
		return s.CommitHeld(ctx, holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return apply(ctx, tx) })
	},
	"queue": func(ctx context.Context, s *pgsink.Sink, f epoch.Fence, apply func(context.Context, execer) error) error {
		return s.Queued().CommitHeld(ctx, holdOf(f), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error { return apply(ctx, q) })
	},
}

// begins are a statement by which a handler's transaction begins, if it has not.
func begins(ctx context.Context, tx execer) error {
	_, err := tx.Exec(ctx, "select 1")
	return err
}

const holdSQL = `select epochfence.hold($1::text, $2::text, $3::int, $4::text::uuid, pg_current_xact_id()::text::bigint, 0, 'nonce')`

// freezeHeld leaves a transaction open that has done everything but the commit.
func freezeHeld(t *testing.T, conn *pgx.Conn, f epoch.Fence, list, value string) {
	t.Helper()
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"begin", nil},
		{enterSQL, []any{30000, pgsink.ClaimLock(f.Claim)}},
		{"insert into effects (list, value) values ($1::text, $2::text)", []any{list, value}},
		{holdSQL, []any{f.Partition.Group, f.Partition.Topic, f.Partition.Number, f.Claim.String()}},
	} {
		if _, err := conn.Exec(t.Context(), s.sql, s.args...); err != nil {
			t.Fatalf("%s: %v", s.sql, err)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestTheCheckOfAHeldClaimHoldsByItself: neither the early look nor the eviction is
// what the guarantee rests on.
func TestTheCheckOfAHeldClaimHoldsByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, zombie := r.open(), r.stranger()
	seed(t, s, orders)
	f := claim(t, zombie, orders, 5)
	err := zombie.CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		f = claim(t, s, orders, 6)
		return put(ctx, tx, "list", "of a claim that was replaced meanwhile")
	})
	want(t, err, epoch.ErrStale)
	err = s.CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, putting("list", "first")); err != nil {
			t.Error(err)
		}
		return put(ctx, tx, "list", "beside it")
	})
	if err != nil {
		t.Errorf("the position has moved meanwhile: %v", err)
	}
	err = s.CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		r.sql("delete from epochfence.fence")
		return put(ctx, tx, "list", "of a fence that was deleted meanwhile")
	})
	want(t, err, epoch.ErrMissing)
	r.wantList("list", "first", "beside it")
}

// TestAHeldClaimWaitsForTheClaimThatReplacesIt, and judges what the fence has become.
func TestAHeldClaimWaitsForTheClaimThatReplacesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, zombie := r.open(), r.stranger()
	seed(t, s, orders)
	for form, run := range heldForms {
		for _, outcome := range []string{"commit", "rollback"} {
			f := claim(t, zombie, orders, 5)
			next := r.db.Superuser(t) // whose claim ends no transaction
			result := make(chan error, 1)
			claiming := func() error {
				_, err := next.Exec(t.Context(), "begin")
				if err == nil {
					_, err = next.Exec(t.Context(), `select epochfence.claim($1, $2, $3, 3000, $4, $5::text::uuid, 'log', 'source', 6, 0, 'next', gen_random_uuid(), null::bigint, null, '')`,
						f.Partition.Group, f.Partition.Topic, f.Partition.Number, int64(f.Epoch), f.Claim.String())
				}
				return err
			}
			if form == "queue" { // whose transaction is refused as it begins, or waits
				if err := claiming(); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				result <- run(t.Context(), zombie, f, func(ctx context.Context, tx execer) error {
					if form != "queue" {
						if err := claiming(); err != nil {
							return err
						}
					}
					return put(ctx, tx, outcome+", "+form, "1")
				})
			}()
			r.eventually("the transaction waits", waiting, "%hold%")
			if _, err := next.Exec(t.Context(), outcome); err != nil {
				t.Fatal(err)
			}
			if err := <-result; outcome == "commit" {
				want(t, err, epoch.ErrStale)
			} else if err != nil {
				t.Errorf("%s, after a rollback of the claim: %v", form, err)
			}
			r.wantList("commit, " + form)
		}
		r.wantList("rollback, "+form, "1")
	}
}

// TestAClaimWaitsForATransactionThatHoldsTheOneBefore where it cannot end it: once
// it is there, nothing more is committed under the one before.
func TestAClaimWaitsForATransactionThatHoldsTheOneBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open(func(o *pgsink.Options) { o.ClaimTimeout = time.Minute })
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	other := r.db.Superuser(t)
	freezeHeld(t, other, f, "list", "before the claim")
	claimed := make(chan error, 1)
	go func() {
		_, err := tryClaim(t.Context(), s, orders, 6)
		claimed <- err
	}()
	r.eventually("the claim waits", waiting, "%claim(%")
	if _, err := other.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-claimed; err != nil {
		t.Fatal(err)
	}
	r.wantList("list", "before the claim")
}

// TestAnOwnerFrozenBetweenItsCheckAndTheCommitIsEnded by the next claim, also where it
// moves no position.
func TestAnOwnerFrozenBetweenItsCheckAndTheCommitIsEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.open(), r.open()
	seed(t, a, orders)
	f := claim(t, a, orders, 5)
	conn := connect(t, r.appURL)
	freezeHeld(t, conn, f, "list", "of a zombie")
	_, took := takesOver(t, b, orders, 6)
	if took > takeoverBound {
		t.Errorf("the next owner's first commit was done after %v", took)
	}
	if _, err := conn.Exec(t.Context(), "commit"); err == nil {
		t.Error("the frozen owner committed")
	}
	r.wantList("list")
}

// TestAnAdvancePassesBesideATransactionThatHoldsItsClaim, whichever has come to its
// check, and also where it is refused.
func TestAnAdvancePassesBesideATransactionThatHoldsItsClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// What waits is refused, before the test's time is up.
	s, stranger := r.open(func(o *pgsink.Options) { o.LockTimeout = 5 * time.Second }), r.stranger()
	seed(t, s, orders)
	old := claim(t, stranger, orders, 5)
	f := claim(t, s, orders, 6)
	open := connect(t, r.appURL)
	freezeHeld(t, open, f, "outbox", "first")
	for range 2 {
		if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("list", "1")); err != nil {
			t.Fatalf("a commit beside a transaction that holds its claim: %v", err)
		}
		f.Next++
	}
	moved := f
	moved.Next--
	want(t, s.Commit(t.Context(), advance(moved, 1), epoch.TxOptions{}, putting("list", "moved")), epoch.ErrMoved)
	want(t, stranger.Commit(t.Context(), advance(old, 1), epoch.TxOptions{}, putting("list", "stale")), epoch.ErrStale)
	if _, err := open.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	advanced := freeze(t, r.appURL, f, 30*time.Second) // and holds the fence
	for form, run := range heldForms {
		if err := run(t.Context(), s, f, func(ctx context.Context, tx execer) error { return put(ctx, tx, "outbox", "beside") }); err != nil {
			t.Fatalf("%s: a transaction that holds the claim beside an advance: %v", form, err)
		}
	}
	if _, err := advanced.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	r.wantList("outbox", "first", "beside", "beside")
	r.wantList("list", "1", "1")
}

// TestARefusedAdvanceDoesNotWaitForATransactionThatHoldsTheClaim: the check at its end
// locks the fence to see what it has become.
func TestARefusedAdvanceDoesNotWaitForATransactionThatHoldsTheClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open(func(o *pgsink.Options) { o.LockTimeout = 5 * time.Second })
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	open := connect(t, r.appURL)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, putting("list", "first")); err != nil {
			return err
		}
		freezeHeld(t, open, f, "outbox", "open")
		return put(ctx, tx, "list", "of a position that moved meanwhile")
	})
	want(t, err, epoch.ErrMoved)
	if _, err := open.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	r.wantList("list", "first")
	r.wantList("outbox", "open")
}

// TestAHeldClaimInEachIsolation: what becomes of the fence after the transaction has
// its snapshot is no matter as long as the claim is the same, and otherwise is stale,
// or a serialization failure where the snapshot hides the next claim.
func TestAHeldClaimInEachIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.open(func(o *pgsink.Options) { o.Isolation = isolation })
			next := r.stranger() // whose claims do not end the transactions of s
			seed(t, s, orders)
			advances := func(s *pgsink.Sink, f epoch.Fence) {
				t.Helper()
				if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("list", "1")); err != nil {
					t.Error(err)
				}
			}
			refusal := epoch.ErrTransient
			if isolation == pgx.ReadCommitted {
				refusal = epoch.ErrStale
			}
			for _, c := range []struct {
				meanwhile string
				do        func(f epoch.Fence)
				want      error
			}{
				{"nothing", func(epoch.Fence) {}, nil},
				{"an advance", func(f epoch.Fence) { advances(s, f) }, nil},
				{"two advances", func(f epoch.Fence) { advances(s, f); f.Next++; advances(s, f) }, nil},
				{"the next claim", func(epoch.Fence) { claim(t, next, orders, 6) }, refusal},
				{"an advance and the next claim", func(f epoch.Fence) { advances(s, f); claim(t, next, orders, 6) }, refusal},
				{"the next claim and its advance", func(epoch.Fence) { advances(next, claim(t, next, orders, 6)) }, refusal},
				{"an advance, the next claim and its advance", func(f epoch.Fence) { advances(s, f); advances(next, claim(t, next, orders, 6)) }, refusal},
			} {
				f := claim(t, s, orders, 5)
				err := s.CommitHeld(t.Context(), holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					if err := begins(ctx, tx); err != nil { // and has its snapshot
						return err
					}
					c.do(f)
					return put(ctx, tx, c.meanwhile, "1")
				})
				switch {
				case c.want == nil && err != nil:
					t.Errorf("meanwhile %s: %v", c.meanwhile, err)
				case c.want != nil:
					if !errors.Is(err, c.want) || errors.Is(err, epoch.ErrInDoubt) {
						t.Errorf("meanwhile %s: err = %v, want %v", c.meanwhile, err, c.want)
					}
					r.wantList(c.meanwhile)
				default:
					r.wantList(c.meanwhile, "1")
				}
			}
		})
	}
}

// TestALostAcknowledgementUnderAHeldClaim: whether the commit landed is told by what it
// has written, to who claims again.
func TestALostAcknowledgementUnderAHeldClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		cut  cut
		want []string
	}{
		{"landed", cutAfter, []string{"first", "second"}},
		{"landed, and the check was answered", cutWithin, []string{"first", "second"}},
		{"not landed", cutBefore, []string{"first"}},
	} {
		for form, run := range heldForms {
			t.Run(c.what+", "+form, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				var w wire
				s := r.openOn(r.pool(w.one))
				seed(t, s, orders)
				f := claim(t, s, orders, 5)
				commit := func(value string, cut cut) error {
					return run(t.Context(), s, f, func(ctx context.Context, tx execer) error {
						defer w.arm(cut)
						return put(ctx, tx, "list", value)
					})
				}
				if err := commit("first", cutNothing); err != nil { // prepares all statements
					t.Fatal(err)
				}
				want(t, commit("second", c.cut), epoch.ErrInDoubt)
				again := claim(t, s, orders, 6)
				r.wantList("list", c.want...)
				want(t, commit("third", cutNothing), epoch.ErrStale)
				if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now != again {
					t.Errorf("the fence is %+v, %v; want %+v", now, err, again)
				}
			})
		}
	}
}

func TestAHeldClaimTakesAsManyRoundTripsAsAnAdvance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var w wire
	s := r.openOn(r.pool(w.one))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for form, want := range map[string]int{"handler": 3, "queue": 1} {
		for range 2 { // the first prepares
			w.sent()
			if err := heldForms[form](t.Context(), s, f, func(ctx context.Context, tx execer) error { return put(ctx, tx, "x", "1") }); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.sent(); n != want {
			t.Errorf("%s: one statement took %d round trips, want %d", form, n, want)
		}
	}
}
