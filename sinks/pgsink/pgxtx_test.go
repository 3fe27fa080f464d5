package pgsink_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// errChanged is why a savepoint is gone back to.
var errChanged = errors.New("changed its mind")

// What a function that wants a pgx.Tx does with it, and what is in the lists then.
var pgxTxUses = map[string]struct {
	do   func(ctx context.Context, tx pgx.Tx) error
	want []string
}{
	"writes through each method": {func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("insert into effects (list, value) values ('list', 'batch')")
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromRows([][]any{{"list", "copy"}}))
		var n int
		return errors.Join(put(ctx, tx, "list", "exec"), tx.SendBatch(ctx, b).Close(), err,
			tx.QueryRow(ctx, "insert into effects (list, value) values ('list', 'row') returning 1").Scan(&n),
			func() error { r, err := tx.Query(ctx, "select 1"); r.Close(); return err }())
	}, []string{"copy", "exec", "batch", "row"}},
	"commits a savepoint": {func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return put(ctx, tx, "list", "inside") })
	}, []string{"inside"}},
	"goes back to a savepoint, and on": {func(ctx context.Context, tx pgx.Tx) error {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			return errors.Join(put(ctx, tx, "list", "undone"), errChanged)
		})
		if !errors.Is(err, errChanged) {
			return errors.Join(errors.New("BeginFunc"), err)
		}
		return put(ctx, tx, "list", "after")
	}, []string{"after"}},
	"survives a statement that fails behind a savepoint": {func(ctx context.Context, tx pgx.Tx) error {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1/0"); return err })
		if err == nil {
			return errors.New("divided by zero")
		}
		return put(ctx, tx, "list", "after")
	}, []string{"after"}},
	"nests": {func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(outer pgx.Tx) error {
			_ = pgx.BeginFunc(ctx, outer, func(tx pgx.Tx) error {
				return errors.Join(put(ctx, tx, "list", "undone"), errChanged)
			})
			return errors.Join(put(ctx, outer, "list", "outer"), pgx.BeginFunc(ctx, outer, func(tx pgx.Tx) error { return put(ctx, tx, "list", "inner") }))
		})
	}, []string{"outer", "inner"}},
	"ends a savepoint twice, which is as pgx has it": {func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := errors.Join(put(ctx, inner, "list", "inside"), inner.Commit(ctx)); err != nil {
			return err
		}
		_, again := inner.Begin(ctx)
		for _, err := range []error{inner.Commit(ctx), inner.Rollback(ctx), again, put(ctx, inner, "list", "too late")} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				return errors.Join(errors.New("want pgx.ErrTxClosed"), err)
			}
		}
		return nil
	}, []string{"inside"}},
	"is refused to prepare, and has no connection": {func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "p", "select 1"); !errors.Is(err, errors.ErrUnsupported) || tx.Conn() != nil {
			return errors.Join(errors.New("Prepare or Conn"), err)
		}
		return nil
	}, nil},
}

func TestAHandlersTxIsAPgxTxWithSavepoints(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.openOn(newPool(t, r.appURL, mode))
			seed(t, s, orders)
			f := claim(t, s, orders, 5)
			for name, use := range pgxTxUses {
				r.sql("truncate effects")
				as := advance(f, 1)
				if err := s.Commit(t.Context(), as, func(ctx context.Context, tx pgsink.Tx) error { return use.do(ctx, pgsink.AsPgxTx(tx)) }); err != nil {
					t.Errorf("a handler that %s: %v", name, err)
					continue
				}
				f.Next = as[0].To
				r.wantList("list", use.want...)
			}
		})
	}
}

func TestAHandlerThatEndsItsPgxTxCommitsNothingAndIsFoundOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, end := range map[string]func(pgx.Tx, context.Context) error{"Commit": pgx.Tx.Commit, "Rollback": pgx.Tx.Rollback} {
		for _, outcome := range []error{nil, errChanged} {
			err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx pgsink.Tx) error {
				p := pgsink.AsPgxTx(tx)
				if err := put(ctx, p, "list", name); err != nil {
					return err
				}
				want(t, end(p, ctx), epoch.ErrTxEndedByHandler)
				if err := end(p, ctx); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s again: %v", name, err)
				}
				return outcome
			})
			want(t, err, epoch.ErrTxEndedByHandler)
		}
	}
	r.wantList("list")
	if err := s.Commit(t.Context(), advance(f, 1), putting("list", "as ever")); err != nil {
		t.Error(err)
	}
	r.wantList("list", "as ever")
}
