package pgschema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/operate"
)

// snapshotsSQL reads what each role may see, except for the start of other roles' transactions,
// which only members of pg_read_all_stats see. Autovacuum, which has no role, holds nothing back.
const snapshotsSQL = `
select distinct on (h.holder) h.holder, h.name, coalesce(h.pid, 0), h.transactions, coalesce(extract(epoch from pg_catalog.clock_timestamp() - h.since), 0)::float8
from (
	select '` + operate.HolderSession + `', coalesce(nullif(a.application_name, ''), a.usename, ''), a.pid,
		greatest(pg_catalog.age(a.backend_xid), pg_catalog.age(a.backend_xmin)), a.xact_start
	from pg_catalog.pg_stat_activity a
	where (a.datname = pg_catalog.current_database() or a.datname is null) and a.usesysid is not null and a.pid <> pg_catalog.pg_backend_pid()
	union all
	select '` + operate.HolderPrepared + `', p.gid, null, pg_catalog.age(p.transaction), p.prepared
	from pg_catalog.pg_prepared_xacts p where p.database = pg_catalog.current_database()
	union all
	select '` + operate.HolderSlot + `', s.slot_name, s.active_pid, pg_catalog.age(s.xmin), null from pg_catalog.pg_replication_slots s
) h (holder, name, pid, transactions, since)
where h.transactions is not null order by h.holder, h.transactions desc`

// OldestSnapshots returns the oldest snapshot of each kind of holder that keeps row versions of the
// database.
func OldestSnapshots(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) ([]operate.Snapshot, error) {
	rows, err := db.Query(ctx, snapshotsSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s operate.Snapshot, err error) {
		var seconds float64
		err = row.Scan(&s.Holder, &s.Name, &s.PID, &s.Transactions, &seconds)
		s.Age = time.Duration(seconds * float64(time.Second))
		return s, err
	})
}
