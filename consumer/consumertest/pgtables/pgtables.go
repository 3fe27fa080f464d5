// Package pgtables reads the tables of a PostgreSQL for package consumertest, and puts their rows back.
package pgtables

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer/consumertest"
)

// Of returns the database of a pgsink. The role of pool must be a superuser, or own the tables and have SET ON PARAMETER
// session_replication_role. The handler's role must be allowed to read the tables that are compared.
func Of(pool *pgxpool.Pool) consumertest.Tables { return database{pool} }

type database struct{ pool *pgxpool.Pool }

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (d database) Dialect() consumertest.Dialect {
	return consumertest.Dialect{Quote: "quote_nullable(%s::text)", Separator: "chr(31)", Overriding: "OVERRIDING SYSTEM VALUE", Only: "ONLY ", Parallel: true, Columns: `
		select c.oid::regclass::text, format('%I.%I', n.nspname, c.relname), a.attname::text,
			concat_ws('', case when a.attidentity <> '' or pg_get_expr(e.adbin, e.adrelid) ~ '^nextval' then 'n' end,
				case when to_regclass(quote_ident(n.nspname) || '.fence_ledger') is not null
					and c.relname in ('migration', 'fence', 'fence_ledger', 'observed', 'outside_write', 'postponed', 'cas_item', 'cas_source') then 'o' end),
			coalesce(f.confrelid::regclass::text || '.' || g.attname, ''), coalesce(pg_get_expr(e.adbin, e.adrelid), '')
		from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
			left join pg_attrdef e on e.adrelid = c.oid and e.adnum = a.attnum
			left join lateral (select confrelid, confkey from pg_constraint where conrelid = c.oid and contype = 'f' and conkey = array[a.attnum]
				order by conparentid, oid limit 1) f on true
			left join pg_attribute g on g.attrelid = f.confrelid and f.confkey = array[g.attnum]
		where c.relkind = 'r' and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and n.nspname !~ '^(pg_|information_schema$)'
		order by c.oid, a.attnum`}
}

func (d database) Query(ctx context.Context, tx any, text string) ([][]string, error) {
	through := querier(d.pool)
	if tx != nil {
		var is bool
		if through, is = tx.(querier); !is {
			return nil, fmt.Errorf("pgtables cannot read through a %T", tx)
		}
	}
	rows, err := through.Query(ctx, text)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) ([]string, error) {
		texts := make([]string, len(r.FieldDescriptions()))
		into := make([]any, len(texts))
		for i := range texts {
			into[i] = &texts[i]
		}
		return texts, r.Scan(into...)
	})
}

// Lock has a connection of its own, as the pool may have no second one.
func (d database) Lock(ctx context.Context) (unlock func(), err error) {
	config := d.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	var locked bool
	if err = conn.QueryRow(ctx, `select pg_try_advisory_lock(hashtext('epochfence consumertest'))`).Scan(&locked); err == nil && !locked {
		err = errors.New("another Check runs on this database")
	}
	unlock = func() {
		_, _ = conn.Exec(ctx, `select pg_advisory_unlock_all()`) // a server learns of a closed connection later
		_ = conn.Close(ctx)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (d database) Restore(ctx context.Context, texts []string) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("set local session_replication_role = replica")
		for _, text := range texts {
			b.Queue(text)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}
