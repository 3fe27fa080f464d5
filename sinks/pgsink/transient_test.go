package pgsink_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestRefusalsThatPassAreTransientAndOthersAreNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	r.sql(`create function fail(code text) returns void language plpgsql as $$ begin raise exception using errcode = code; end $$`)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for code, transient := range map[string]bool{
		"40001": true, // serialization_failure
		"40P01": true, // deadlock_detected
		"53100": true, // disk_full
		"53200": true, // out_of_memory
		"55P03": true, // lock_not_available
		"25006": true, // read_only_sql_transaction
		"23505": false,
		"22P02": false,
		"57014": false, // a statement that takes too long is its message's fault
	} {
		for form, err := range map[string]error{
			"handler": s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, "select fail($1)", code)
				return err
			}),
			"queue": s.Queued().Commit(t.Context(), advance(f, 1), func(ctx context.Context, q *pgsink.Queue) error {
				_, err := q.Exec(ctx, "select fail($1)", code)
				return err
			}),
		} {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != code || errors.Is(err, epoch.ErrTransient) != transient {
				t.Errorf("%s, SQLSTATE %s: err = %v; want transient: %v", form, code, err, transient)
			}
		}
	}
}
