package pgsink_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// idiomRig is a database in which many plays have their topics. Its unqualified names are
// those of the handlers.
type idiomRig struct {
	*rig
	operator operate.Operator
	aside    *pgxpool.Pool
}

func newIdiomRig(t testing.TB) *idiomRig {
	r := newRig(t)
	r.sql(postgreSQL.Setup)
	r.sql("create table idiom_documents (document jsonb); grant insert, select on idiom_documents to public")
	return &idiomRig{r, r.operator(t), newPool(t, r.appURL, runtimeParam("lock_timeout", "50ms"))}
}

func (r *idiomRig) asides(ctx context.Context, query string) error {
	_, err := r.aside.Exec(ctx, query)
	return err
}

func TestIdioms(t *testing.T) {
	t.Parallel()
	r := newIdiomRig(t)
	var ms []sinktest.Idiomatic[pgsink.Tx]
	for n, name := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		m := r.tx(name, "pgsink", modes[name])
		switch m.Own = ofTx; {
		case name == "simple_protocol": // differs most
			m.Plays = sinktest.WireMatters
		case n > 0:
			m.Plays = sinktest.Nothing
		}
		ms = append(ms, m)
	}
	cached := modes["cache_statement"]

	handle := r.tx("AsPgxTx", "", cached)
	handle.Own, handle.Plays = ofHandles, sinktest.HandlesAlone
	handle.Exec = func(ctx context.Context, tx pgsink.Tx, query string, args ...any) error {
		_, err := pgsink.AsPgxTx(tx).Exec(ctx, query, args...)
		return err
	}
	handle.Query = func(ctx context.Context, tx pgsink.Tx, query string) (sinktest.Rows, error) {
		return pgsink.AsPgxTx(tx).Query(ctx, query)
	}
	handle.Handle = func(tx pgsink.Tx) sinktest.Handle { return pgxHandle{pgsink.AsPgxTx(tx)} }

	db := r.tx("OpenDB", "", cached)
	db.Exec = func(ctx context.Context, tx pgsink.Tx, query string, args ...any) error {
		_, err := pgsink.OpenDB(tx).ExecContext(ctx, query, args...)
		return err
	}
	db.Query = func(ctx context.Context, tx pgsink.Tx, query string) (sinktest.Rows, error) {
		rows, err := pgsink.OpenDB(tx).QueryContext(ctx, query)
		if err != nil {
			return nil, err
		}
		return sqlRows{rows}, nil
	}
	db.DB, db.Plays = pgsink.OpenDB, sinktest.HandlesAlone
	sinktest.Idioms(t, append(ms, handle, db)...)
}

func TestIdiomsQueued(t *testing.T) {
	t.Parallel()
	r := newIdiomRig(t)
	pool := r.plays()
	sinktest.Idioms(t, sinktest.Idiomatic[*pgsink.Queue]{
		Mode: "Queued", Speaks: postgreSQL, Queued: true, Plays: sinktest.WireMatters,
		Database: func(testing.TB) sinktest.Database[*pgsink.Queue] {
			return sinktest.Database[*pgsink.Queue]{
				Open: func(testing.TB) epoch.Sink[*pgsink.Queue] { return r.openOn(pool).Queued() },
				Append: func(ctx context.Context, q *pgsink.Queue, list, value string) error {
					return put(ctx, q, list, value)
				},
				List:       r.list,
				Aside:      r.asides,
				Operator:   func(testing.TB) operate.Operator { return r.operator },
				DeadLetter: r.open().Queued().DeadLetter,
			}
		},
		Exec: func(ctx context.Context, q *pgsink.Queue, query string, args ...any) error {
			_, err := q.Exec(ctx, query, args...)
			return err
		},
	})
}

// tx is the mode in which handlers send statements through a Tx.
func (r *idiomRig) tx(name, column string, configure func(*pgxpool.Config)) sinktest.Idiomatic[pgsink.Tx] {
	deadLetter := r.open().DeadLetter
	pool := r.plays(configure)
	return sinktest.Idiomatic[pgsink.Tx]{
		Mode: name, Column: column, Speaks: postgreSQL,
		Database: func(testing.TB) sinktest.Database[pgsink.Tx] {
			return sinktest.Database[pgsink.Tx]{
				Open: func(testing.TB) epoch.Sink[pgsink.Tx] { return r.openOn(pool) },
				Append: func(ctx context.Context, tx pgsink.Tx, list, value string) error {
					return put(ctx, tx, list, value)
				},
				List:       r.list,
				Aside:      r.asides,
				Operator:   func(testing.TB) operate.Operator { return r.operator },
				DeadLetter: deadLetter,
			}
		},
		Exec: func(ctx context.Context, tx pgsink.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		},
		Query: func(ctx context.Context, tx pgsink.Tx, query string) (sinktest.Rows, error) {
			return tx.Query(ctx, query)
		},
	}
}

// plays returns the pool that all plays of a mode share, as processes of one application
// do through a pooler: what one of them leaves on a connection, others would meet. To
// connect takes PostgreSQL longer than most plays do.
func (r *idiomRig) plays(configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	return newPool(r, r.appURL, append(configure, fast, func(c *pgxpool.Config) { c.MaxConns = 16 })...)
}

// pgxHandle is a pgx.Tx as the suite has it.
type pgxHandle struct{ pgx.Tx }

func (h pgxHandle) Exec(ctx context.Context, query string, args ...any) error {
	_, err := h.Tx.Exec(ctx, query, args...)
	return err
}

func (h pgxHandle) Begin(ctx context.Context) (sinktest.Handle, error) {
	inner, err := h.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return pgxHandle{inner}, nil
}

// sqlRows are rows whose Close says nothing.
type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close() { _ = r.Rows.Close() }
