package pgsink_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// stranger is a process with a role of its own, whose transactions a claim of
// the others may not end.
func (r *rig) stranger() *pgsink.Sink {
	r.Helper()
	role, url := r.db.Role(r.TB)
	if err := pgsink.Grant(r.Context(), r.admin, role, pgsink.Options{Schema: r.schema}); err != nil {
		r.Fatal(err)
	}
	r.sql("grant select, insert, update on effects, stock to " + role)
	return r.openOn(newPool(r.TB, url))
}

// TestTheCheckAtTheEndHoldsByItself: neither the early look nor the eviction is
// what the guarantee rests on.
func TestTheCheckAtTheEndHoldsByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, zombie := r.open(), r.stranger()
	seed(t, s, orders)

	for _, looksEarly := range []bool{true, false} {
		f := claim(t, zombie, orders, 5)
		if looksEarly {
			pgsink.Forget(zombie)
		}
		err := zombie.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			claim(t, s, orders, 6)
			return put(ctx, tx, "list", "of a claim that was replaced meanwhile")
		})
		want(t, err, epoch.ErrStale)
	}

	f := claim(t, s, orders, 7)
	pgsink.Forget(s) // a proof that runs out in the handler would bring the early look behind it
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, putting("list", "first")); err != nil {
			t.Error(err)
		}
		return put(ctx, tx, "list", "of a position that moved meanwhile")
	})
	want(t, err, epoch.ErrMoved)

	f = claim(t, s, orders, 8)
	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		r.sql("delete from epochfence.fence")
		return put(ctx, tx, "list", "of a fence that was deleted meanwhile")
	})
	want(t, err, epoch.ErrMissing)
	r.wantList("list", "first")
}

// TestAnAdvanceWaitsForWhoeverIsChangingTheFence and judges what it has become:
// an UPDATE alone does not wait for a row whose old version does not match.
func TestAnAdvanceWaitsForWhoeverIsChangingTheFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, zombie := r.open(), r.stranger()
	seed(t, s, orders)
	for _, outcome := range []string{"commit", "rollback"} {
		f := claim(t, zombie, orders, 5)
		other := r.db.Superuser(t)
		result := make(chan error, 1)
		go func() {
			result <- zombie.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				_, err := other.Exec(ctx, "begin; update epochfence.fence set claim_id = gen_random_uuid(), epoch = epoch + 1")
				if err == nil {
					err = put(ctx, tx, outcome, "1")
				}
				return err
			})
		}()
		r.eventually("the advance waits", waiting, "%advance%")
		if _, err := other.Exec(t.Context(), outcome); err != nil {
			t.Fatal(err)
		}
		if err := <-result; outcome == "commit" {
			want(t, err, epoch.ErrStale)
		} else if err != nil {
			t.Errorf("after a %s of the other: %v", outcome, err)
		}
	}
	r.wantList("commit")
	r.wantList("rollback", "1")
}

// waiting is whether a statement like $1 waits for a lock.
const waiting = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like $1)"

func TestConcurrentSeedsOfOneTopicComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	first, err := pgx.Connect(t.Context(), r.appURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close(context.Background()) }()
	_, err = first.Exec(t.Context(), `begin; select epochfence.seed('billing', 'orders', 1000,
		'{0}', '{log}', '{source}', '{70}', '{-1}', '{7}', '{-1}')`)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		second <- s.Seed(t.Context(), []epoch.Start{{Origin: origin(orders), Next: epoch.Position{Offset: 70, Mark: epoch.NoMark}, Earliest: epoch.Position{Offset: 7, Mark: epoch.NoMark}}})
	}()
	r.eventually("the second waits", waiting, "%seed%")
	if _, err := first.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if f, err := epoch.FenceOf(t.Context(), s, orders); err != nil || f.Next != 7 {
		t.Errorf("the second begins at %d, %v; want its earliest, 7: the group has a fence of the topic", f.Next, err)
	}
}

// TestTheDefaultIsolationOfTheDatabaseDoesNotMatter: what relies on READ
// COMMITTED asks for it.
func TestTheDefaultIsolationOfTheDatabaseDoesNotMatter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("alter database " + r.db.Name + " set default_transaction_isolation = 'serializable'")
	s := r.open(func(o *pgsink.Options) { o.ClaimTimeout = 20 * time.Second })
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	// The claim waits for a commit that comes after its transaction began.
	other := r.db.Superuser(t)
	if _, err := other.Exec(t.Context(), "begin; update epochfence.fence set next_offset = 9"); err != nil {
		t.Fatal(err)
	}
	var got epoch.Fence
	claimed := make(chan error, 1)
	go func() {
		var err error
		got, err = s.Claim(t.Context(), f, epoch.NewClaim(lease(orders, 6)))
		claimed <- err
	}()
	r.eventually("the claim waits", waiting, "%claim%")
	if _, err := other.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-claimed; err != nil || got.Next != 9 {
		t.Errorf("the claim found offset %d, %v; want 9", got.Next, err)
	}
}

// TestAnAdvanceJudgesNoVersionThatIsBeingReplaced: one that starts where a
// commit under way will leave the fence is not refused for where it stood.
func TestAnAdvanceJudgesNoVersionThatIsBeingReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	first := freeze(t, r.appURL, f, 30*time.Second)
	second := r.db.Superuser(t)
	result := make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), "begin; select set_config('epochfence.transaction', pg_current_xact_id()::text, true)")
		if err == nil {
			_, err = second.Exec(t.Context(), advanceSQL, []string{f.Partition.Group}, []string{f.Partition.Topic}, []int32{f.Partition.Number},
				[]string{f.Claim.String()}, []int64{1}, []int64{2}, []int64{-1})
		}
		if err == nil {
			_, err = second.Exec(t.Context(), "commit")
		}
		result <- err
	}()
	r.eventually("the second waits", waiting, "%advance%")
	if _, err := first.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if f, err := epoch.FenceOf(t.Context(), s, orders); err != nil || f.Next != 2 {
		t.Errorf("the fence is at offset %d, %v; want 2", f.Next, err)
	}
}
