package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/sinks/pgsink"
)

func (p *postgres) examine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, p.sink.StartTimeout+inTime)
	defer cancel()
	var version, role string
	began := time.Now()
	var now time.Time
	if err := p.pool.QueryRow(ctx, "select current_setting('server_version'), current_user, clock_timestamp()").Scan(&version, &role, &now); err != nil {
		return []finding{{Check: "database", Status: bad, Detail: secretive(err, p.pool.Config().ConnString()).Error()}}
	}
	took := time.Since(began)
	skew := now.Sub(began.Add(took / 2)).Round(time.Millisecond)
	fs := []finding{
		{Check: "database", Status: ok, Detail: fmt.Sprintf("PostgreSQL %s, as %s", version, role)},
		{Check: "clock", Status: info, Detail: fmt.Sprintf("the server's is %v from this machine's, give or take %v", skew, (took / 2).Round(time.Millisecond))},
	}
	fs = append(fs, p.rights(ctx)...)
	fs = append(fs, p.settings(ctx)...)
	return append(fs, p.transactions(ctx)...)
}

// rights reports which kinds of work this role's privileges allow.
func (p *postgres) rights(ctx context.Context) (fs []finding) {
	for _, as := range roleKinds {
		sql, err := p.grant("role", as, false)
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

// transactions looks for old transactions, which keep vacuum from removing old row versions of the
// fences. Only a member of pg_read_all_stats sees those of other roles.
func (p *postgres) transactions(ctx context.Context) []finding {
	var n int64
	var oldest float64
	err := p.pool.QueryRow(ctx, `select count(*), coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0)::float8 from pg_catalog.pg_stat_activity
		where datname = current_database() and xact_start < clock_timestamp() - interval '5 minutes' and pid <> pg_backend_pid()`).Scan(&n, &oldest)
	if err != nil {
		return []finding{{Check: "transactions", Status: warn, Detail: err.Error()}}
	}
	if n > 0 {
		return []finding{{Check: "transactions", Status: warn, Remedy: "select pid, usename, state, query from pg_stat_activity order by xact_start",
			Detail: fmt.Sprintf("%s open for more than 5 minutes, the oldest for %s: fences get slow", count(n, "transaction"), age(time.Duration(oldest)*time.Second))}}
	}
	return nil
}
