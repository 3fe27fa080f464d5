package pgsink_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
)

func TestALostConnectionMayLeadToAnotherServerAndIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.MaxConns = 1 }))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	replaced := s.Facts().Replaced
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("l", "v")); err != nil {
		t.Fatal(err)
	}
	claim(t, s, orders, 6)
	select {
	case <-replaced:
		t.Fatal("said though no connection was lost")
	default:
	}
	r.sql("select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = '" + r.role + "'")
	if _, err := epoch.FenceOf(t.Context(), s, orders); err != nil {
		t.Fatal(err)
	}
	select {
	case <-replaced:
	default:
		t.Error("not said")
	}
	if again := s.Facts().Replaced; again == replaced {
		t.Error("what comes next would not be said")
	}
}
