package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// What the application's role may execute it may also execute by hand, with any arguments.

func (r *rig) app() *pgx.Conn {
	r.Helper()
	app, err := pgx.Connect(r.Context(), r.appURL)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = app.Close(context.WithoutCancel(r.Context())) })
	return app
}

func TestTheApplicationsRoleUsesNoEpochsUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	app := r.app()
	swap := func(seen epoch.Fence, generation, above int64) error {
		_, err := app.Exec(t.Context(), "select epochfence.claim($1, $2, $3, 1000, $4, $5, 'log', 'source', $6, $7, 'me', gen_random_uuid(), $8, $8, '')",
			seen.Partition.Group, seen.Partition.Topic, seen.Partition.Number, int64(seen.Epoch), seen.Claim.String(), generation, above, nil)
		return err
	}
	const top, step = 1<<63 - 1, int64(epoch.MaxStep)
	for _, c := range []struct{ generation, above int64 }{{top, 0}, {top - 1, 0}, {1, top}, {1, top - 1}, {1, 5 + step + 1}, {5 + step + 2, 0}, {1, int64(epoch.MaxAbove)}} {
		var pg *pgconn.PgError
		if err := swap(f, c.generation, c.above); !errors.As(err, &pg) || pg.Code != "XF019" {
			t.Errorf("generation %d, above %d: err = %v; want that it is out of reach", c.generation, c.above, err)
		}
	}
	// As far as it gets by jumps; from there on it takes a claim for each epoch.
	r.sql(fmt.Sprintf("update epochfence.fence set epoch = %d", epoch.MaxAbove))
	f.Epoch = epoch.MaxAbove
	if err := swap(f, 1, int64(epoch.MaxAbove)+1); err == nil {
		t.Error("an epoch beyond the highest was jumped to")
	}
	if f = claim(t, s, orders, 5); f.Epoch != epoch.MaxAbove+1 {
		t.Errorf("the next epoch is %d, want %d", f.Epoch, epoch.MaxAbove+1)
	}
	if _, err := evict(t, r.operator(t), orders); err != nil {
		t.Error(err)
	}
}

func TestTheApplicationsRoleWritesNothingInAnOperatorsName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	anna := lease(orders, 6)
	anna.Owner = "operator anna"
	if _, err := s.Claim(t.Context(), f, epoch.NewClaim(anna)); err == nil || !strings.Contains(err.Error(), "names that begin with") {
		t.Errorf("a claim: err = %v", err)
	}
	decision := operate.Decision{Kind: operate.DecidedHalt, Partition: orders, Owner: "operator anna", By: "anna"}
	must(t, s.Write(t.Context(), operate.EntryOf(decision))) // and not by package operate, which leaves it out
	for _, kind := range []operate.DecisionKind{operate.DecidedRewind, operate.DecidedReplayRequest, operate.DecidedDiscard} {
		decision.Kind = kind
		if err := s.Write(t.Context(), operate.EntryOf(decision)); err == nil || !strings.Contains(err.Error(), "a consumer records no") {
			t.Errorf("%s: err = %v", kind, err)
		}
	}
	decision.Kind = operate.DecidedReplay // which nobody has requested
	must(t, s.Write(t.Context(), operate.EntryOf(decision)))
	ds, err := r.operator(t).History(t.Context(), operate.HistoryQuery{})
	if err != nil || len(ds) != 3 {
		t.Fatalf("%+v, %v; want the claim, the halt and the replay", ds, err)
	}
	for _, d := range ds {
		if strings.Contains(d.Owner+d.By, "anna") || d.Role != r.role {
			t.Errorf("in an operator's name: %+v", d)
		}
	}
}

// TestEpochsThatAreUsedUpGoOnAfterTheDocumentedStatement, which is in docs/command-line.md.
func TestEpochsThatAreUsedUpGoOnAfterTheDocumentedStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	text, err := os.ReadFile("../../docs/sql/lower_epochs.sql")
	if err != nil {
		t.Fatal(err)
	}
	s := r.open()
	seed(t, s, orders)
	zombie := claim(t, s, orders, 41)
	must(t, s.Commit(t.Context(), advance(zombie, 1), epoch.TxOptions{}, putting("l", "1")))
	r.sql(string(text))
	if f, err := epoch.FenceOf(t.Context(), s, orders); err != nil || f.Claim != zombie.Claim {
		t.Errorf("a fence with epochs left was changed: %+v, %v", f, err)
	}
	r.sql("update epochfence.fence set epoch = 9223372036854775807")
	if _, err := tryClaim(t.Context(), s, orders, 6); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("err = %v; want that epochs are used up", err)
	}
	if _, err := evict(t, r.operator(t), orders); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("an act: err = %v; want that epochs are used up", err)
	}
	r.sql(string(text))
	zombie.Next++
	want(t, s.Commit(t.Context(), advance(zombie, 1), epoch.TxOptions{}, putting("l", "of a zombie")), epoch.ErrStale)
	f := claim(t, s, orders, 6)
	if f.Epoch != 43 || f.Next != 1 {
		t.Errorf("claimed epoch %d at %d, want 43 at 1", f.Epoch, f.Next)
	}
	must(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return put(ctx, tx, "l", "2") }))
	r.wantList("l", "1", "2")
}
