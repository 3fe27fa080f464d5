package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// This file is the sink in PostgreSQL, as database.go wants it. postgres_examine.go has the
// findings about the server.

type postgres struct {
	pool *pgxpool.Pool
	sink pgsink.Options
	box  pgoutbox.Options
}

func openPostgres(ctx context.Context, f flags) (*postgres, error) {
	if err := secret.Check(f.database); err != nil {
		return nil, usage("--database: %w", err)
	}
	config, err := pgxpool.ParseConfig(f.database)
	if err != nil {
		return nil, usage("the URL of PostgreSQL: %w", err)
	}
	config.MaxConns = 4
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "epochfence"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &postgres{
		pool: pool,
		sink: pgsink.Options{Schema: f.schema, StartTimeout: f.timeout, Logger: quiet},
		box:  pgoutbox.Options{Schema: f.outboxSchema, StartTimeout: f.timeout, Logger: quiet},
	}, nil
}

func (p *postgres) close() { p.pool.Close() }

func (p *postgres) operator(ctx context.Context) (operate.Operator, error) {
	return p.openOperator(ctx)
}

func (p *postgres) openOperator(ctx context.Context) (*pgsink.Operator, error) {
	op, err := pgsink.OpenOperator(ctx, p.pool, p.sink)
	if errors.Is(err, migrations.ErrNotMigrated) {
		err = p.elsewhere(ctx, err)
	}
	return op, err
}

// elsewhere adds the schemas that have a sink to an error about a schema.
func (p *postgres) elsewhere(ctx context.Context, err error) error {
	rows, failed := p.pool.Query(ctx, `select n.nspname from pg_catalog.pg_proc f join pg_catalog.pg_namespace n on n.oid = f.pronamespace
		where f.proname = 'schema_version' and exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relname = 'fence')
		order by 1 limit 10`)
	if failed != nil {
		return err
	}
	schemas, failed := pgx.CollectRows(rows, pgx.RowTo[string])
	if failed != nil || len(schemas) == 0 {
		return err
	}
	return fmt.Errorf("%w; there are sinks in schema %q: say which with --schema", err, schemas)
}

func (p *postgres) tables(ctx context.Context) ([]tables, error) {
	sink, err := pgsink.Migrations(p.sink)
	if err != nil {
		return nil, err
	}
	box, err := pgoutbox.Migrations(p.box)
	if err != nil {
		return nil, err
	}
	found := []tables{
		{of: "sink", where: cmp.Or(p.sink.Schema, pgsink.DefaultSchema), scripts: sink,
			migrate: func(ctx context.Context) error { return pgsink.Migrate(ctx, p.pool, p.sink) }},
		{of: "outbox", where: cmp.Or(p.box.Schema, pgoutbox.DefaultSchema), scripts: box,
			migrate: func(ctx context.Context) error { return pgoutbox.Migrate(ctx, p.pool, p.box) }},
	}
	for i, table := range []string{"migration", "outbox_migration"} {
		if found[i].have, err = p.version(ctx, found[i].where, table); err != nil {
			return nil, fmt.Errorf("version of the %s's tables: %w", found[i].of, err)
		}
	}
	return found, nil
}

func (p *postgres) version(ctx context.Context, schema, table string) (v int, err error) {
	var there, function bool
	err = p.pool.QueryRow(ctx, `select
		exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2),
		$2 = 'migration' and exists (select from pg_catalog.pg_proc f join pg_catalog.pg_namespace n on n.oid = f.pronamespace
			where n.nspname = $1 and f.proname = 'schema_version')`, schema, table).Scan(&there, &function)
	if err != nil || !there {
		return 0, err
	}
	sql := "select coalesce(max(version), 0) from " + pgx.Identifier{schema, table}.Sanitize()
	if function { // callable without privileges on the tables
		sql = "select " + pgx.Identifier{schema, "schema_version"}.Sanitize() + "()"
	}
	err = p.pool.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

func (p *postgres) grant(role string, as roleKind, outbox bool) (sql string, err error) {
	switch as {
	case application:
		sql, err = pgsink.GrantSQL(role, p.sink)
	case reader:
		sql, err = pgsink.GrantReaderSQL(role, p.sink)
	case operator:
		sql, err = pgsink.GrantOperatorSQL(role, p.sink)
	}
	if err == nil && outbox {
		var box string
		box, err = p.grantOutbox(role, as)
		sql += box
	}
	return sql, err
}

func (p *postgres) run(ctx context.Context, sql string) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	})
}

func (p *postgres) drill(ctx context.Context) ([]trial, error) {
	sink, err := pgsink.Open(ctx, p.pool, p.sink)
	if errors.Is(err, pgsink.ErrPermission) {
		return nil, fmt.Errorf("a drill commits as a consumer does, so it needs the application's rights: %w", err)
	}
	if err != nil {
		return nil, err
	}
	op, err := p.operator(ctx)
	if err != nil {
		return nil, err
	}
	d := &drill[pgsink.Tx]{sink: sink, op: op, put: func(ctx context.Context, tx pgsink.Tx, m epoch.Message, e epoch.Epoch) error {
		return sink.DeadLetter(ctx, tx, m, e, errDrill)
	}, open: true}
	return d.run(ctx)
}

const inTime = 15 * time.Second
