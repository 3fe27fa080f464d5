package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/txdb"
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
	"is refused to prepare, and is given no connection": {func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "p", "select 1"); !errors.Is(err, errors.ErrUnsupported) {
			return errors.Join(errors.New("Prepare"), err)
		}
		if tx.Conn() != nil {
			return errors.New("it has the connection")
		}
		if c := configOf(tx); c.ConnConfig.Host != "" || c.ConnConfig.Password != "" || c.ConnString() != "" {
			return fmt.Errorf("the configuration has %+v", c.ConnConfig)
		}
		return nil
	}, nil},
}

// configOf is how River learns the query mode of a transaction.
func configOf(tx pgx.Tx) *pgxpool.Config {
	return tx.(interface{ Config() *pgxpool.Config }).Config()
}

func TestAHandlersTxIsAPgxTxWithSavepoints(t *testing.T) {
	t.Parallel()
	for mode, set := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.openOn(newPool(t, r.appURL, set))
			seed(t, s, orders)
			f := claim(t, s, orders, 5)
			for name, use := range pgxTxUses {
				r.sql("truncate effects")
				as := advance(f, 1)
				if err := s.Commit(t.Context(), as, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					if got := configOf(pgsink.AsPgxTx(tx)).ConnConfig.DefaultQueryExecMode.String(); got != strings.ReplaceAll(mode, "_", " ") {
						t.Errorf("the query mode is said to be %s", got)
					}
					return use.do(ctx, pgsink.AsPgxTx(tx))
				}); err != nil {
					t.Errorf("a handler that %s: %v", name, err)
					continue
				}
				f.Next = as[0].To
				r.wantList("list", use.want...)
			}
		})
	}
}

// What Commit and Rollback of the handle mean, and of handles within it.
func TestAHandleMeansWhatItMeansToPgxAsFarAsItsCallIsConcerned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	write := func(ctx context.Context, tx execer, value string) { must(t, put(ctx, tx, "list", value)) }
	for name, c := range map[string]struct {
		handle func(ctx context.Context, tx pgsink.Tx) error
		err    error // nil where it commits
		want   []string
	}{
		"a Rollback deferred behind a Commit": {func(ctx context.Context, tx pgsink.Tx) error {
			p := pgsink.AsPgxTx(tx)
			defer func() { want(t, p.Rollback(ctx), pgx.ErrTxClosed) }()
			write(ctx, p, "a")
			return p.Commit(ctx)
		}, nil, []string{"a"}},
		"writes beside a handle that was committed": {func(ctx context.Context, tx pgsink.Tx) error {
			p := pgsink.AsPgxTx(tx)
			must(t, p.Commit(ctx))
			want(t, put(ctx, p, "list", "x"), pgx.ErrTxClosed)
			write(ctx, tx, "a")
			return nil
		}, nil, []string{"a"}},
		"an error after the Commit": {func(ctx context.Context, tx pgsink.Tx) error {
			write(ctx, tx, "a")
			return errors.Join(pgsink.AsPgxTx(tx).Commit(ctx), errChanged)
		}, errChanged, nil},
		"Rollback, and an error": {func(ctx context.Context, tx pgsink.Tx) error {
			write(ctx, tx, "a")
			return errors.Join(pgsink.AsPgxTx(tx).Rollback(ctx), errChanged)
		}, errChanged, nil},
		"Rollback, and nil": {func(ctx context.Context, tx pgsink.Tx) error {
			p := pgsink.AsPgxTx(tx)
			defer func() { must(t, p.Rollback(ctx)) }()
			write(ctx, tx, "a")
			write(ctx, p, "b")
			return nil
		}, nil, nil},
		"Rollback of nothing, and nil": {func(ctx context.Context, tx pgsink.Tx) error {
			return pgsink.AsPgxTx(tx).Rollback(ctx)
		}, nil, nil},
		"a statement after Rollback": {func(ctx context.Context, tx pgsink.Tx) error {
			must(t, pgsink.AsPgxTx(tx).Rollback(ctx))
			want(t, put(ctx, tx, "list", "a"), pgx.ErrTxClosed)
			return nil
		}, pgx.ErrTxClosed, nil},
		"a Commit within a Rollback": {func(ctx context.Context, tx pgsink.Tx) error {
			p := pgsink.AsPgxTx(tx)
			outer, err := p.Begin(ctx)
			must(t, err)
			write(ctx, outer, "a")
			inner, err := outer.Begin(ctx)
			must(t, err)
			write(ctx, inner, "b")
			must(t, outer.Rollback(ctx))
			want(t, inner.Commit(ctx), pgx.ErrTxClosed)
			write(ctx, p, "c")
			return nil
		}, nil, []string{"c"}},
		"two handles, one in the other": {func(ctx context.Context, tx pgsink.Tx) error {
			outer, err := pgsink.AsPgxTx(tx).Begin(ctx)
			must(t, err)
			write(ctx, outer, "a")
			inner, err := pgsink.AsPgxTx(tx).Begin(ctx)
			must(t, err)
			write(ctx, inner, "b")
			must(t, inner.Rollback(ctx))
			write(ctx, outer, "c")
			return outer.Rollback(ctx)
		}, nil, nil},
		"one that is left open": {func(ctx context.Context, tx pgsink.Tx) error {
			inner, err := pgsink.AsPgxTx(tx).Begin(ctx)
			must(t, err)
			write(ctx, inner, "a")
			return nil
		}, txdb.ErrLeft, nil},
		"one whose end never reached the server": {func(ctx context.Context, tx pgsink.Tx) error {
			within, cancel := context.WithCancel(ctx)
			_ = pgx.BeginFunc(within, pgsink.AsPgxTx(tx), func(inner pgx.Tx) error {
				write(ctx, inner, "a")
				cancel()
				return errChanged
			})
			return nil
		}, txdb.ErrLeft, nil},
		"one that is committed": {func(ctx context.Context, tx pgsink.Tx) error {
			return pgx.BeginFunc(ctx, pgsink.AsPgxTx(tx), func(inner pgx.Tx) error { write(ctx, inner, "a"); return nil })
		}, nil, []string{"a"}},
	} {
		r.sql("truncate effects")
		as := advance(f, 1)
		err := s.Commit(t.Context(), as, epoch.TxOptions{}, c.handle)
		if c.err == nil && err == nil {
			f.Next = as[0].To
		}
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: err = %v; want %v", name, err, c.err)
		}
		r.wantList("list", c.want...)
		if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now.Next != f.Next {
			t.Errorf("%s: the fence is at %d, %v; want %d", name, now.Next, err, f.Next)
		}
	}
}

// What others wrote is not undone: the call is to have its transaction to itself.
func TestACallThatUndoesWhatItWroteIsToBeAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, putting("list", "innocent"), func(ctx context.Context, tx pgsink.Tx) error {
		must(t, put(ctx, tx, "list", "a"))
		return pgsink.AsPgxTx(tx).Rollback(ctx)
	})
	var call *epoch.CallError
	if !errors.Is(err, epoch.ErrOwnTransaction) || !errors.As(err, &call) || call.Call != 1 {
		t.Errorf("err = %v", err)
	}
	r.wantList("list")
}
