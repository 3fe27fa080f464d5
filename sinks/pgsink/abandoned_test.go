package pgsink_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// A handler that hangs with a row locked is abandoned. The row is free at once, and the pool has
// room for another connection, although the handler has not returned.
func TestAnAbandonedTransactionFreesItsLocksAndItsPlaceInThePool(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := newPool(t, r.appURL, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := r.openOn(pool)
	seed(t, s, orders)
	f := claim(t, s, orders, 1)
	abandoned, abandon := context.WithCancel(context.Background())
	locked, free, committed := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		committed <- s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{Abandoned: abandoned},
			func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, "update stock set left_over = 1 where item = 1")
				locked <- err
				<-free
				_, err = tx.Exec(context.WithoutCancel(ctx), "update stock set left_over = 2 where item = 1")
				return err
			})
	}()
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	abandon()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // through the pool of one connection
		_, err := tx.Exec(ctx, "update stock set left_over = 99 where item = 1")
		return err
	}); err != nil {
		t.Fatalf("the row is locked still, or the pool has no place: %v", err)
	}
	if len(committed) > 0 {
		t.Error("Commit returned before the handler")
	}
	close(free)
	if err := <-committed; !errors.Is(err, epoch.ErrAbandoned) || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("Commit = %v, want ErrAbandoned and no doubt", err)
	}
	var left int
	if err := r.reader.QueryRow(t.Context(), "select left_over from stock where item = 1").Scan(&left); err != nil || left != 99 {
		t.Errorf("left_over = %d, %v", left, err)
	}
	// The pool's health check acquires idle connections for a moment, so a number above 0 proves nothing.
	back, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatalf("a connection is not given back: %v", err)
	}
	back.Release()
}
