package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// This file is the sink in PostgreSQL, as database.go wants it. It decides what is wrong with a
// server: privileges, settings that lose commits, and old snapshots.

type postgres struct {
	pool       *pgxpool.Pool
	sink       pgsink.Options
	notGranted error
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
	p := &postgres{sink: pgsink.Options{Schema: f.schema, StartTimeout: f.timeout, Logger: quiet}}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == "01007" { // a warning, when a role grants what is not its own
			p.notGranted = fmt.Errorf("%s: run it as the schema's owner", n.Message)
		}
	}
	p.pool, err = pgxpool.NewWithConfig(ctx, config)
	return p, err
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

func (p *postgres) tables(ctx context.Context) (*tables, error) {
	scripts, err := pgsink.Migrations(p.sink)
	if err != nil {
		return nil, err
	}
	t := &tables{where: cmp.Or(p.sink.Schema, pgsink.DefaultSchema), scripts: scripts, waits: ", 2 s at a time so that others go first",
		migrate: func(ctx context.Context) error { return pgsink.Migrate(ctx, p.pool, p.sink) }}
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) (err error) {
		t.have, err = pgschema.Schema{Name: t.where}.Version(ctx, tx)
		return err
	})
	if err == nil && t.have > 0 {
		t.alive = p.alive(ctx, t.where)
	}
	return t, err
}

// alive asks the function, because an operator cannot be opened on tables that are older.
func (p *postgres) alive(ctx context.Context, schema string) map[string]int {
	rows, err := p.pool.Query(ctx, "select coalesce(body::json ->> 'version', ''), count(*)::int from "+pgx.Identifier{schema, "rows"}.Sanitize()+
		"('process', null, null, null, null, null, null, null, null, null, null, false, null) where changed_at > read_at - interval '1 minute' group by 1")
	if err != nil {
		return nil
	}
	alive := map[string]int{}
	var version string
	var n int
	if _, err = pgx.ForEachRow(rows, []any{&version, &n}, func() error {
		alive[version] = n
		return nil
	}); err != nil {
		return nil
	}
	return alive
}

func (p *postgres) grant(role string, as roleKind) (string, error) {
	switch as {
	case reader:
		return pgsink.GrantReaderSQL(role, p.sink)
	case operator:
		return pgsink.GrantOperatorSQL(role, p.sink)
	case observer:
		return pgsink.GrantObserverSQL(role, p.sink)
	default:
		return pgsink.GrantSQL(role, p.sink)
	}
}

func (p *postgres) run(ctx context.Context, sql string) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return cmp.Or(err, p.notGranted)
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
	d := &drill[pgsink.Tx]{sink: sink, op: op, put: sink.DeadLetter, open: true}
	return d.run(ctx)
}

const inTime = 15 * time.Second

func (p *postgres) examine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, p.sink.StartTimeout+inTime)
	defer cancel()
	var version, role string
	began := time.Now()
	var now int64 // in microseconds
	if err := p.pool.QueryRow(ctx, "select current_setting('server_version'), current_user, (extract(epoch from clock_timestamp()) * 1000000)::bigint").
		Scan(&version, &role, &now); err != nil {
		return []finding{{Check: "database", Status: bad, Detail: secret.Error(err, p.pool.Config().ConnString()).Error()}}
	}
	took := time.Since(began)
	skew := time.UnixMicro(now).Sub(began.Add(took / 2)).Round(time.Millisecond)
	fs := []finding{
		{Check: "database", Status: ok, Detail: fmt.Sprintf("PostgreSQL %s, as %s", version, role)},
		{Check: "clock", Status: info, Detail: fmt.Sprintf("the server's is %v from this machine's, give or take %v", skew, (took / 2).Round(time.Millisecond))},
	}
	fs = append(fs, p.rights(ctx)...)
	fs = append(fs, p.settings(ctx)...)
	return append(fs, p.snapshots(ctx)...)
}

// rights reports which kinds of work this role's privileges allow.
func (p *postgres) rights(ctx context.Context) (fs []finding) {
	for _, as := range roleKinds {
		sql, err := p.grant("role", as)
		if err != nil {
			return append(fs, finding{Check: "rights", Status: bad, Detail: err.Error()})
		}
		var lacks []string
		err = p.pool.QueryRow(ctx, `select coalesce(array_agg(f), '{}') from unnest($1::text[]) f where not exists (
			select from pg_catalog.pg_proc c join pg_catalog.pg_namespace n on n.oid = c.pronamespace
			where n.nspname = $2 and c.proname = f and has_schema_privilege(n.oid, 'usage') and has_function_privilege(c.oid, 'execute'))`,
			functionsIn(sql), cmp.Or(p.sink.Schema, pgsink.DefaultSchema)).Scan(&lacks)
		switch {
		case err != nil:
			fs = append(fs, finding{Check: "rights", Status: warn, Detail: err.Error()})
		case len(lacks) == 0:
			fs = append(fs, finding{Check: "rights", Status: ok, Detail: fmt.Sprintf("this role may do what the %s does", as)})
		default:
			fs = append(fs, finding{Check: "rights", Status: info, Detail: fmt.Sprintf("this role may not do what the %s does: it lacks %s", as, strings.Join(lacks, ", "))})
		}
	}
	return fs
}

// functionsIn returns the functions that pgsink's SQL grants, which has one on each line.
func functionsIn(sql string) (names []string) {
	for _, line := range strings.Split(sql, "\n") {
		if strings.HasPrefix(line, "    ") {
			names = append(names, strings.TrimSuffix(line[strings.LastIndex(line, ".")+1:], ","))
		}
	}
	return names
}

func (p *postgres) settings(ctx context.Context) (fs []finding) {
	for _, s := range []struct {
		sql    string
		status status
		detail string
		remedy string
	}{
		{"pg_is_in_recovery()", bad, "the server is a standby: it takes no writes", "connect to the primary"},
		{"current_setting('default_transaction_read_only') = 'on'", bad, "transactions are read-only", "default_transaction_read_only = off"},
		{"current_setting('fsync') = 'off'", bad, "fsync is off: a crash of the machine may lose or break what was committed", "fsync = on"},
		{"current_setting('full_page_writes') = 'off'", bad, "full_page_writes is off: a crash of the machine may break what was committed", "full_page_writes = on"},
		{"current_setting('synchronous_commit') = 'off'", warn, "synchronous_commit is off: a crash may lose what was committed last, and its messages are applied again, with their effects gone", "synchronous_commit = on for the application's role"},
		{"current_setting('max_locks_per_transaction')::int < 64", warn, "max_locks_per_transaction is below its default of 64", "max_locks_per_transaction = 64 or more"},
		{"(select count(*) from pg_catalog.pg_stat_activity where backend_type = 'client backend') > current_setting('max_connections')::int * 0.9", warn, "more than nine tenths of max_connections are in use", "smaller pools, or a pooler"},
	} {
		var wrong bool
		if err := p.pool.QueryRow(ctx, "select "+s.sql).Scan(&wrong); err != nil {
			fs = append(fs, finding{Check: "settings", Status: warn, Detail: err.Error()})
		} else if wrong {
			fs = append(fs, finding{Check: "settings", Status: s.status, Detail: s.detail, Remedy: s.remedy})
		}
	}
	if len(fs) == 0 {
		fs = append(fs, finding{Check: "settings", Status: ok, Detail: "of the server are as they should be"})
	}
	return fs
}

func (p *postgres) snapshots(ctx context.Context) []finding {
	held, err := pgschema.OldestSnapshots(ctx, p.pool)
	if err != nil {
		return []finding{{Check: "snapshots", Status: warn, Detail: err.Error()}}
	}
	return oldSnapshots(held)
}

// oldSnapshots names whoever keeps vacuum from removing old row versions. Only a member of
// pg_read_all_stats sees how long a transaction of another role has been open.
func oldSnapshots(held []operate.Snapshot) (fs []finding) {
	for _, s := range held {
		if s.Transactions < 1_000_000 && s.Age < 5*time.Minute {
			continue
		}
		detail := strings.ReplaceAll(s.Holder, "_", " ") + " " + shellQuote(s.Name)
		if s.PID != 0 {
			detail += fmt.Sprintf(" (pid %d)", s.PID)
		}
		detail += fmt.Sprintf(" holds a snapshot that is %s old", count(s.Transactions, "transaction"))
		if s.Age > 0 {
			detail += "; open for " + age(s.Age)
		}
		fs = append(fs, finding{Check: "snapshots", Status: warn, Detail: detail + ": no row that was replaced or deleted meanwhile is removed, and tables grow", Remedy: map[string]string{
			operate.HolderSession:  fmt.Sprintf("see what it does: select * from pg_stat_activity where pid = %[1]d; end it: select pg_terminate_backend(%[1]d)", s.PID),
			operate.HolderPrepared: fmt.Sprintf("commit prepared %[1]s, or rollback prepared %[1]s", literal(s.Name)),
			operate.HolderSlot:     fmt.Sprintf("end the long query of its standby; if nobody uses the slot any more: select pg_drop_replication_slot(%s)", literal(s.Name)),
		}[s.Holder]})
	}
	return fs
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
